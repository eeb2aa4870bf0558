"""Public text for inversion attacks: shipped, read, cut, kept apart from controls and from the victim's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor.plan import InversionSettings
from auditor.public_text import auxiliary_digest, load_public_text, overlapping
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
        (b"\xff\xfe\x00", "not UTF-8"),
        ("", "gives 0"),
    ],
)
def test_what_is_no_public_text_is_refused(tmp_path: Path, content: str | bytes | None, named: str) -> None:
    """By file and line."""
    file = tmp_path / "public.jsonl"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=named):
        load_public_text(InversionSettings(auxiliary=str(file)), Letters())


def test_a_line_is_what_ends_with_a_newline(tmp_path: Path) -> None:
    """JSON may hold other separators of lines, such as U+2028, as they are."""
    file = tmp_path / "public.jsonl"
    file.write_text(json.dumps({"text": "some words\u2028and more " * 100}, ensure_ascii=False) + "\n")
    assert load_public_text(InversionSettings(auxiliary=str(file)), Letters()).auxiliary


def test_no_more_is_read_than_counts(tmp_path: Path) -> None:
    """A huge text is not cut into tokens whole, and the pieces are those of its start."""
    seen: list[int] = []

    class Counting(Letters):
        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            seen.append(len(text))
            return super().__call__(text, **options)

    text = "".join(map(str, range(100_000)))
    lines = "".join(json.dumps({"text": f"{number}{text}"}) + "\n" for number in range(12))
    (tmp_path / "public.jsonl").write_text(lines)
    settings = InversionSettings(auxiliary=str(tmp_path / "public.jsonl"), auxiliary_tokens=800)
    public = load_public_text(settings, Counting())
    assert len(seen) == len(public.auxiliary) + len(public.held_out) == 8
    assert max(seen) < len(text) / 4


def test_the_digest_is_of_the_text(tmp_path: Path) -> None:
    """What a plan names may change under it."""
    file = tmp_path / "public.jsonl"
    settings = InversionSettings(auxiliary=str(file))
    digests = []
    for text in ("one", "one", "two"):
        file.write_text(json.dumps({"text": text}))
        digests.append(auxiliary_digest(settings))
    assert digests[0] == digests[1] != digests[2]
    assert auxiliary_digest(InversionSettings()) == ""


def test_a_text_that_is_cut_in_two_overlaps_as_well(tmp_path: Path) -> None:
    """Half of it at the end of one piece and half at the start of the next: 12 tokens each are none, 24 are one."""
    text = "".join(chr(300 + number) for number in range(2000))
    (tmp_path / "one.txt").write_text(text)
    public = load_public_text(InversionSettings(auxiliary=str(tmp_path)), Letters())
    own = np.array([ord(letter) for letter in text[128 - 12 : 128 + 12]])
    assert overlapping(public.auxiliary, [own]) == 0
    assert overlapping(public.runs, [own]) == 1
    beyond = np.array([ord(letter) for letter in text[-30:]])
    assert overlapping(public.runs, [beyond]) == 0, "that part is held out"


def test_thirteen_tokens_in_a_row_are_an_overlap() -> None:
    """Twelve are none; a short text counts where all of it is there."""
    piece = np.arange(100)
    own = np.array([500, *range(20, 33), 501])
    assert overlapping([piece], [own]) == 1
    assert overlapping([piece], [np.array([500, *range(20, 32), 501])]) == 0
    assert overlapping([piece], [np.arange(40, 49), np.arange(40, 44)]) == 1
