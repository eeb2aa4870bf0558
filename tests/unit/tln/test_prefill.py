"""The parts of a prompt must cover it once, in order, with all padding in the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tln.prefill import Part, parts_of


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 12))
def test_left_padded_parts_cover_every_row_once(lengths: list[int], most: int) -> None:
    """Lengths add up, no part is longer than asked for but for padding, and none has an empty sequence."""
    num_new = max(lengths)
    padded = tuple(lengths) if min(lengths) < num_new else ()
    parts = parts_of(num_new, padded, "left" if padded else "", most)
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == num_new
    first, *rest = parts
    assert first.end <= max(most, num_new - min(lengths) + 1)
    assert all(part.end - part.start <= most and not part.row_lengths for part in rest)
    if padded:
        assert all(1 <= length <= first.end for length in first.row_lengths)
        assert [length + num_new - first.end for length in first.row_lengths] == lengths


def test_what_is_padded_on_the_right_or_not_to_be_cut_stays_whole() -> None:
    """Padding crosses with the first frame only."""
    assert parts_of(9, (3, 9), "right", 4) == [Part(0, 9, (3, 9), "right")]
    assert parts_of(9, (), "", 0) == [Part(0, 9)]
    assert parts_of(4, (), "", 4) == [Part(0, 4)]
