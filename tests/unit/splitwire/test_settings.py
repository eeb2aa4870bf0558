"""Settings: later sources win, every mistake names its key, and the hash is of the effective values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from splitwire import settings
from splitwire.errors import SettingsError


@dataclass(frozen=True)
class Limits:
    max_sessions: int = 8
    ratio: float = 0.5


@dataclass(frozen=True)
class Example:
    address: str = "127.0.0.1:1"
    names: tuple[str, ...] = ()
    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)


def load(tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, **overrides: str) -> Example:
    file = tmp_path / "example.toml"
    file.write_text(text)
    pairs = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return settings.load_settings(Example, program="ucn", file=file, environment=environment or {}, overrides=pairs)


def test_command_line_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    text = 'address = "file:1"\n[limits]\nmax_sessions = 1\nratio = 0.1'
    environment = {"SPLITWIRE_UCN__LIMITS__MAX_SESSIONS": "2", "SPLITWIRE_UCN__LIMITS__RATIO": "0.2"}
    effective = load(tmp_path, text, environment, limits__max_sessions="3")
    assert effective == Example(address="file:1", limits=Limits(max_sessions=3, ratio=0.2))


def test_lists_and_paths_are_read(tmp_path: Path) -> None:
    effective = load(tmp_path, 'names = ["a", "b"]\nfolder = "x"')
    assert effective.names == ("a", "b")
    assert effective.folder == Path("x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adress = 'x'", "unknown key adress. did you mean address?"),
        ("[limits]\nmax_session = 1", "unknown key limits.max_session. did you mean limits.max_sessions?"),
        ("limits = 3", "limits is a section, got 3"),
        ("[limits]\nmax_sessions = 'many'", "limits.max_sessions"),
        ("address = [", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_key(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)
    assert "example.toml" in str(caught.value)


def test_a_mistake_in_the_environment_names_the_environment(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"environment: unknown key limits\.sessions"):
        load(tmp_path, environment={"SPLITWIRE_UCN__LIMITS__SESSIONS": "2"})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml cannot be read"):
        settings.load_settings(Example, program="ucn", file=Path("nowhere.toml"), environment={})


def test_the_hash_changes_with_any_effective_value_and_not_with_its_source(tmp_path: Path) -> None:
    from_file = load(tmp_path, "[limits]\nmax_sessions = 3")
    from_command = load(tmp_path, limits__max_sessions="3")
    assert settings.settings_hash(from_file) == settings.settings_hash(from_command)
    assert settings.settings_hash(from_file) != settings.settings_hash(Example())


def test_rendered_settings_show_every_key_and_the_hash() -> None:
    text = settings.render(Example())
    assert "limits.max_sessions = 8" in text
    assert settings.settings_hash(Example()) in text


def test_a_text_stays_text_where_it_looks_like_another_value(tmp_path: Path) -> None:
    """A folder may be called 2026, from the command line and from the environment."""
    for text in ("2026", "true", "1e5", "inf", "2026-11-30"):
        assert load(tmp_path, address=text, folder=text) == Example(address=text, folder=Path(text))
    assert load(tmp_path, environment={"SPLITWIRE_UCN__ADDRESS": "7"}).address == "7"
    assert load(tmp_path, names='["a", "7"]').names == ("a", "7")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", '"nan"'])
def test_a_number_that_is_not_finite_is_refused_by_its_key(tmp_path: Path, value: str) -> None:
    """Settings are hashed and signed in canonical JSON, which has no such numbers."""
    with pytest.raises(SettingsError, match=r"limits\.ratio"):
        load(tmp_path, limits__ratio=value)
    with pytest.raises(SettingsError, match=r"example\.toml: limits\.ratio"):
        load(tmp_path, f"[limits]\nratio = {value}")


def test_an_integer_beyond_the_canonical_range_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"limits\.max_sessions is 99+.*2\*\*53"):
        load(tmp_path, limits__max_sessions="9" * 20)
    with pytest.raises(SettingsError):
        load(tmp_path, limits__max_sessions="9" * 5000)
    with pytest.raises(SettingsError, match="is not TOML"):
        load(tmp_path, f"[limits]\nmax_sessions = {'9' * 5000}")


def test_a_truth_value_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"limits\.max_sessions is a number, got True"):
        load(tmp_path, "[limits]\nmax_sessions = true")


def test_a_wrong_value_names_the_place_it_came_from(tmp_path: Path) -> None:
    """The file is not blamed for what the environment or the command line said."""
    with pytest.raises(SettingsError, match=r"^environment: limits\.max_sessions"):
        load(tmp_path, "[limits]\nratio = 0.1", {"SPLITWIRE_UCN__LIMITS__MAX_SESSIONS": "many"})
    with pytest.raises(SettingsError, match=r"^command line: limits\.max_sessions"):
        load(tmp_path, "[limits]\nratio = 0.1", limits__max_sessions="many")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00", b"a = " + b"[" * 5000])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "binary.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"binary\.toml"):
        settings.load_settings(Example, program="ucn", file=file, environment={})
