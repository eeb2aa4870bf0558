"""Public text for inversion attacks: shipped, read, cut, kept apart from controls and from the victim's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor.plan import InversionSettings
from auditor.public_text import load_public_text, overlapping
from splitwire.errors import SettingsError


class Letters:
    """A tokenizer of one token a letter."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def test_the_shipped_text_is_there_and_controls_are_apart() -> None:
    """As many tokens as the plan asks for, and none of them held out as well."""
    public = load_public_text(InversionSettings(auxiliary_tokens=10_000), Letters())
    assert 9_000 <= sum(map(len, public.auxiliary)) <= 10_400
    assert len(public.held_out) >= 8
    assert {piece.tobytes() for piece in public.auxiliary}.isdisjoint(piece.tobytes() for piece in public.held_out)


def test_a_folder_and_a_file_of_lines_are_read(tmp_path: Path) -> None:
    """With the same pieces."""
    text = "Some public words. " * 100
    (tmp_path / "one.txt").write_text(text)
    (tmp_path / "lines.jsonl").write_text(json.dumps({"text": text}) + "\n\n")
    found = [
        load_public_text(InversionSettings(auxiliary=str(path)), Letters())
        for path in (tmp_path, tmp_path / "lines.jsonl")
    ]
    assert [piece.tolist() for piece in found[0].auxiliary] == [piece.tolist() for piece in found[1].auxiliary]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "cannot be read"),
        ('{"words": 1}', "has no text"),
        ("no json", "has no text"),
        ('{"text": "x"}', "gives 0"),
    ],
)
def test_what_is_no_public_text_is_refused(tmp_path: Path, content: str | None, named: str) -> None:
    """By file and line."""
    file = tmp_path / "public.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=named):
        load_public_text(InversionSettings(auxiliary=str(file)), Letters())


def test_thirteen_tokens_in_a_row_are_an_overlap() -> None:
    """Twelve are none; a short text counts where all of it is there."""
    piece = np.arange(100)
    own = np.array([500, *range(20, 33), 501])
    assert overlapping([piece], [own]) == 1
    assert overlapping([piece], [np.array([500, *range(20, 32), 501])]) == 0
    assert overlapping([piece], [np.arange(40, 49), np.arange(40, 44)]) == 1
