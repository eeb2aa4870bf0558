"""A long prompt goes through head, crossing and tail in parts, so that no part of it needs memory for the whole.

Causal attention makes the parts of a prompt the prompt: with a cache, positions [0, n) and then [n, T) give what [0, T)
gives. Padding crosses as row lengths, with the first frame of a cache only; so left padding is all in the first part,
and a prompt that is padded on the right stays whole.

Shapes: B sequences, T new positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tln.context import PaddingSide

DEFAULT_PREFILL_POSITIONS = 512


@dataclass(frozen=True)
class Part:
    """New positions [start, end) of a pass, and the lengths of their real rows (() when all are real)."""

    start: int
    end: int
    row_lengths: tuple[int, ...] = ()
    padding_side: PaddingSide = ""


def parts_of(num_new: int, lengths: Sequence[int], side: PaddingSide, most: int) -> list[Part]:
    """The parts of `num_new` positions, none longer than `most` but for padding. `most` 0 leaves the pass whole."""
    whole = Part(0, num_new, tuple(lengths), side)
    if not most or num_new <= most or side == "right":
        return [whole]
    padding = num_new - min(lengths) if lengths else 0
    first = max(most, min(padding + 1, num_new))
    rest = num_new - first
    parts = [Part(0, first, tuple(length - rest for length in lengths), side)]
    parts += [Part(start, min(start + most, num_new)) for start in range(first, num_new, most)]
    return parts
