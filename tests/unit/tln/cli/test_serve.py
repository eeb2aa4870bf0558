"""`tln serve` says what it needs before it loads anything."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from splitwire.errors import SettingsError
from tln.cli import app
from tln.cli import serve as command

TLS = [part for name in ("ca", "certificate", "key") for part in ("--set", f"connection.tls.{name}=/nowhere")]


def run(*arguments: str) -> Any:
    """The result; what the command refuses is raised."""
    result = CliRunner().invoke(app, ["serve", *TLS, *arguments])
    if isinstance(result.exception, SettingsError):
        raise result.exception
    return result


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way to install it."""
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(SettingsError, match=r"needs fastapi, .*extra http.*splitwire\[http\]"):
        run()


@pytest.mark.parametrize(
    ("pairs", "match"),
    [
        (("--listen", "0.0.0.0:80"), "serve.api_key_file is empty"),
        (("--set", "stack.kind=gram"), "cannot generate"),
        (("--set", 'frame.mechanisms=["clip_noise","decoys"]'), "decoys"),
        (("--set", "keys.ratchet_steps=3"), "ratchet_steps is refused"),
        (("--set", "serve.max_running=0"), "serve.max_running"),
    ],
)
def test_what_is_refused(pairs: tuple[str, ...], match: str) -> None:
    """An open port without a key, and what no pool of sessions can keep."""
    with pytest.raises(SettingsError, match=match):
        run(*pairs)


def test_the_settings_are_shown() -> None:
    """With their hash."""
    result = run("--listen", "127.0.0.1:9999", "--print-settings")
    assert 'serve.listen = "127.0.0.1:9999"' in result.stdout
    assert "settings hash" in result.stdout
