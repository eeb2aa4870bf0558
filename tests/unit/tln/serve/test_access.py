"""Keys: private files, constant answers; and what may not be combined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitwire.errors import SettingsError
from tln.ratchet import KeySettings
from tln.serve.access import load_keys
from tln.serve.refusals import check_serve
from tln.serve.settings import ServeSettings
from tln.settings import TlnSettings
from tln.topology.settings import TopologySettings

KEY = "0123456789abcdef"


def key_file(folder: Path, content: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_one_of_the_keys_opens(tmp_path: Path) -> None:
    """As a bearer token and not otherwise."""
    keys = load_keys(key_file(tmp_path, f"{KEY}\n\n{KEY}-other\n"))
    assert keys.allows(f"Bearer {KEY}")
    assert keys.allows(f"bearer {KEY}-other")
    for wrong in ("", KEY, f"Basic {KEY}", "Bearer ", f"Bearer {KEY}x", "Bearer \udcff"):
        assert not keys.allows(wrong)


@pytest.mark.parametrize(
    ("content", "mode", "match"),
    [
        (KEY, 0o640, "others can read"),
        (KEY, 0o604, "others can read"),
        ("", 0o600, "no key"),
        ("short", 0o600, "fewer"),
        ("a-key-of-many-characters-\u00e9", 0o600, "not ASCII. write keys of letters"),
    ],
)
def test_a_key_file_that_is_refused(tmp_path: Path, content: str, mode: int, match: str) -> None:
    """Readable by others, empty, or with a key that can be guessed."""
    with pytest.raises(SettingsError, match=match):
        load_keys(key_file(tmp_path, content, mode))


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    """One line, no traceback."""
    with pytest.raises(SettingsError, match="cannot be read"):
        load_keys(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"serve": ServeSettings(listen="0.0.0.0:8080")}, "whoever reaches it"),
        ({"serve": ServeSettings(listen="nonsense")}, "not host:port"),
        ({"serve": ServeSettings(certificate="x")}, "go together"),
        ({"serve": ServeSettings(certificate="x", certificate_key="y")}, "cannot be used"),
        ({"keys": KeySettings(ratchet_steps=5)}, "ratchet_steps is refused"),
        ({"topology": TopologySettings(kind="segments")}, "topology.kind segments"),
    ],
)
def test_settings_that_are_refused(change: dict[str, Any], match: str) -> None:
    """An open port without a key, and a defence that a pool of sessions could not keep."""
    with pytest.raises(SettingsError, match=match):
        check_serve(replace(TlnSettings(), **change))


def test_a_key_opens_other_addresses() -> None:
    """Loopback needs none."""
    check_serve(TlnSettings())
    check_serve(replace(TlnSettings(), serve=ServeSettings(listen="0.0.0.0:8080", api_key_file="somewhere")))
