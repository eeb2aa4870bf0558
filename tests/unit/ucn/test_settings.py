"""Settings of the untrusted node: defaults, limits on values, and combinations that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from splitwire.errors import SettingsError
from splitwire.settings import load_settings, settings_hash
from ucn.settings import UcnSettings, check

TLS = 'tls.ca = "ca.pem"\ntls.certificate = "cert.pem"\ntls.key = "key.pem"\n'


def _load(tmp_path: Path, text: str) -> UcnSettings:
    file = tmp_path / "ucn.toml"
    file.write_text(text)
    return load_settings(UcnSettings, program="ucn", file=file, environment={})


def test_a_file_fills_every_section(tmp_path: Path) -> None:
    """Lists, nested sections and files come out typed."""
    text = (
        'stacks = ["gram"]\nlease_seconds = 5\n'
        + TLS
        + '[limits]\nmax_sessions = 3\n[metrics]\nlisten = "127.0.0.1:9"\n'
    )
    settings = _load(tmp_path, text)
    check(settings)
    assert settings.stacks == ("gram",)
    assert settings.tls is not None
    assert settings.tls.ca == Path("ca.pem")
    assert (settings.limits.max_sessions, settings.lease_seconds, settings.metrics.listen) == (3, 5, "127.0.0.1:9")
    assert len(settings_hash(settings)) == 64


@pytest.mark.parametrize(
    "text",
    [
        "lease_seconds = 0",
        "drain_seconds = -1",
        'stacks = ["diffusion"]',
        "limits.max_sessions = 0",
        "frame_timeout_seconds = 0",
        'tls.ca = "ca.pem"',
        'model.dtype = "fp8"',
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, text: str) -> None:
    """The error names the key."""
    with pytest.raises(SettingsError, match=text.partition(" ")[0].partition(".")[0]):
        _load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tls is not set"),
        ("insecure_loopback = true\n" + TLS, "both set"),
        ('insecure_loopback = true\nlisten = "10.0.0.1:1"', "loopback"),
        (TLS + "allowed_names = []", "nobody could call"),
        (TLS + "stacks = []", "stacks is empty"),
        (TLS + 'listen = "nowhere"', "host:port"),
        (TLS + 'metrics.listen = "9464"', "host:port"),
        ('insecure_loopback = true\nmetrics.listen = "0.0.0.0:9"', "loopback"),
    ],
)
def test_what_cannot_work_together_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Before anything is loaded or bound."""
    with pytest.raises(SettingsError, match=message):
        check(_load(tmp_path, text))


def test_metrics_may_leave_loopback_under_tls(tmp_path: Path) -> None:
    """They are then pulled over mutual TLS."""
    check(_load(tmp_path, TLS + 'metrics.listen = "0.0.0.0:9464"'))


@pytest.mark.parametrize("command", ["serve", "info"])
def test_the_command_line_shows_effective_settings(command: str, monkeypatch: Any, capsys: Any) -> None:
    """--print-settings shows values and hash and loads nothing."""
    from ucn.cli import app  # noqa: PLC0415 - the test is about this import

    monkeypatch.setenv("SPLITWIRE_UCN__LIMITS__MAX_SESSIONS", "5")
    app([command, "--set", "lease_seconds=7", "--print-settings"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "limits.max_sessions = 5" in shown
    assert "lease_seconds = 7" in shown
    assert "# settings hash " in shown


def test_a_setting_without_a_value_is_refused() -> None:
    """--set takes key=value."""
    from ucn.cli import app  # noqa: PLC0415 - the test is about this import

    with pytest.raises(SettingsError, match="key=value"):
        app(["serve", "--set", "lease_seconds"], standalone_mode=False)
