"""Every command takes its settings in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from splitwire.errors import SettingsError
from splitwire.options import effective_settings, parse_pair


@dataclass(frozen=True)
class Example:
    first: int = 1
    second: str = "a"


def test_a_commands_own_option_wins_over_set_and_set_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('first = 2\nsecond = "b"\n')
    assert effective_settings(Example, "example", file, None) == Example(2, "b")
    assert effective_settings(Example, "example", file, ["first=3", "second=c"]) == Example(3, "c")
    assert effective_settings(Example, "example", file, ["first=3"], [("first", "4")]) == Example(4, "b")


def test_a_value_may_hold_equals_signs_and_be_empty() -> None:
    assert parse_pair("a.b = c=d") == ("a.b", "c=d")
    assert parse_pair("a=") == ("a", "")


@pytest.mark.parametrize("text", ["a", "=b", " =b", ""])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        parse_pair(text)
