"""A tap that could not record, or would send in the clear, does not start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditor.tap import TapSettings
from splitwire.errors import SettingsError
from splitwire.settings import load_settings
from splitwire.tls import TlsFiles

GOOD = TapSettings(upstream="127.0.0.1:1", out=Path("bundle"), insecure_loopback=True)
TLS = TlsFiles(Path("a"), Path("b"), Path("c"))


def test_plaintext_between_loopback_addresses_is_acceptable() -> None:
    GOOD.check()


def test_tls_to_anywhere_is_acceptable() -> None:
    replace(GOOD, insecure_loopback=False, tls=TLS, listen="0.0.0.0:1", upstream="ucn.example:2").check()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"upstream": ""}, "upstream is not set"),
        ({"upstream": "ucn"}, "host:port"),
        ({"listen": "127.0.0.1:70000"}, "host:port"),
        ({"listen": "0.0.0.0:1"}, "loopback"),
        ({"upstream": "192.0.2.1:1"}, "loopback"),
        ({"out": Path()}, "out is not set"),
        ({"insecure_loopback": False}, "tls is not set"),
        ({"tls": TLS}, "both set"),
        ({"tls": TLS, "insecure_loopback": False, "allowed_names": ()}, "allowed_names is empty"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changes: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text) as caught:
        replace(GOOD, **changes).check()
    assert caught.value.remedy


def test_settings_come_from_file_environment_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "tap.toml"
    file.write_text('listen = "127.0.0.1:1"\ndrain_seconds = 1\n[metrics]\nlisten = "127.0.0.1:2"\n')
    settings = load_settings(
        TapSettings,
        program="tap",
        file=file,
        environment={"SPLITWIRE_TAP__DRAIN_SECONDS": "2", "SPLITWIRE_TAP__WHEN_FULL": "wait"},
        overrides=[("drain_seconds", "3")],
    )
    assert (settings.listen, settings.metrics.listen) == ("127.0.0.1:1", "127.0.0.1:2")
    assert (settings.drain_seconds, settings.when_full) == (3.0, "wait")
