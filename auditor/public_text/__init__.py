"""Public text for inversion attacks: what an attacker has beside the captured bytes and the public model.

The shipped text is in the public domain (NOTICE.md). A plan names another with `inversion.auxiliary`. Attacks learn
from pieces of it; positive controls are made of pieces that no attack is given.

Refused: a file that cannot be read, is of another form or is too short; text that is also the victim's, since an attack
would then be scored on what it was taught.

Shapes: T tokens of one piece.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from auditor.arrays import Integers
from auditor.plan import InversionSettings
from splitwire.errors import SettingsError

SHIPPED = "state_of_the_union.jsonl"
OVERLAP_TOKENS = 13
"""So many tokens in a row that stand in two texts are no accident."""
_PIECE_TOKENS = 128
_CONTROL_RATIO = 0.2
"""Share of the public text that no attack is given: controls are made of it."""
_FEWEST_PIECES = 8
_MOST_CHARACTERS = 64
"""Of a token, by far."""


@dataclass(frozen=True, eq=False)
class PublicText:
    """Pieces [T] of public text in tokens: what attacks may learn from, and what controls are made of."""

    name: str
    auxiliary: tuple[Integers, ...]
    held_out: tuple[Integers, ...]
    runs: tuple[Integers, ...]
    """What attacks may learn from, uncut: of each document the tokens of its pieces in a row."""


def load_public_text(settings: InversionSettings, tokenizer: Any) -> PublicText:
    """The plan's public text, else the shipped one, in tokens of this tokenizer."""
    name = settings.auxiliary or f"the shipped {SHIPPED}"
    documents = _documents(Path(settings.auxiliary)) if settings.auxiliary else _shipped()
    wanted = round(settings.auxiliary_tokens / (1 - _CONTROL_RATIO))
    pieces = _pieces(documents, tokenizer, wanted)
    if len(pieces) < _FEWEST_PIECES:
        raise SettingsError(
            f"inversion.auxiliary: {name} gives {len(pieces)} pieces of {_PIECE_TOKENS} tokens",
            remedy=f"give texts of at least {_PIECE_TOKENS} tokens each, {_FEWEST_PIECES} pieces of so many in all",
        )
    num_control = max(1, round(_CONTROL_RATIO * len(pieces)))
    learned, controls = pieces[:-num_control], pieces[-num_control:]
    by_document: dict[int, list[Integers]] = {}
    for document, piece in learned:  # in turn, so those of one document follow each other in it
        by_document.setdefault(document, []).append(piece)
    runs = tuple(np.concatenate(parts) for parts in by_document.values())
    return PublicText(name, tuple(piece for _, piece in learned), tuple(piece for _, piece in controls), runs)


def overlapping(pieces: Sequence[Integers], victims: Sequence[Integers]) -> int:
    """How many of the victims' texts [T] have OVERLAP_TOKENS tokens in a row in common with a piece.

    A victim's text that is shorter counts where all of it stands in a piece, from 8 tokens on.
    """
    lengths = {min(OVERLAP_TOKENS, len(victim)) for victim in victims}
    known = {length: {run for piece in pieces for run in _runs(piece, length)} for length in lengths if length >= 8}
    return sum(
        any(run in known.get(min(OVERLAP_TOKENS, len(victim)), ()) for run in _runs(victim, OVERLAP_TOKENS))
        for victim in victims
    )


def _runs(tokens: Integers, length: int) -> Iterator[bytes]:
    """Every run of so many tokens; all of a text that is shorter."""
    length = min(length, len(tokens))
    for start in range(len(tokens) - length + 1):
        yield tokens[start : start + length].astype(np.int64).tobytes()


def auxiliary_digest(settings: InversionSettings) -> str:
    """SHA-256 hex of the plan's public text, which a plan names and does not hold; empty for the shipped one."""
    digest = hashlib.sha256()
    for document in _documents(Path(settings.auxiliary)) if settings.auxiliary else ():
        digest.update(hashlib.sha256(document.encode()).digest())
    return digest.hexdigest() if settings.auxiliary else ""


def _pieces(documents: Iterable[str], tokenizer: Any, wanted: int) -> list[tuple[int, Integers]]:
    """Pieces with the number of their document, in turn, so that a small number of them still has every document in it.

    No more is read than can count: of a long document its start, and no document after as many as there are pieces.
    """
    most, cut = max(_FEWEST_PIECES, -(-wanted // _PIECE_TOKENS)), list[list[Integers]]()
    for document in documents:
        start = document[: _MOST_CHARACTERS * most * _PIECE_TOKENS]
        ids = np.array(tokenizer(start, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        starts = range(0, len(ids) - _PIECE_TOKENS + 1, _PIECE_TOKENS)
        cut += [[ids[start : start + _PIECE_TOKENS] for start in starts]] if starts else []
        if len(cut) == most:
            break
    rounds = max((len(pieces) for pieces in cut), default=0)
    in_turn = [(place, parts[turn]) for turn in range(rounds) for place, parts in enumerate(cut) if turn < len(parts)]
    return in_turn[:most]


def _shipped() -> Iterator[str]:
    with files("auditor.public_text").joinpath(SHIPPED).open(encoding="utf-8") as lines:
        yield from _texts(lines, SHIPPED)


def _documents(path: Path) -> Iterator[str]:
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.txt")):
                yield file.read_text(encoding="utf-8")
        else:
            with path.open(encoding="utf-8", newline="\n") as lines:
                yield from _texts(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(
            f"inversion.auxiliary: {path} cannot be read: {reason}",
            remedy="give a folder of .txt or a .jsonl file with a field text",
        ) from None


def _texts(lines: Iterable[str], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise SettingsError(
                f"inversion.auxiliary: line {number} of {name} has no text",
                remedy='write one {"text": "..."} a line, or give a folder of .txt',
            )
        yield text
