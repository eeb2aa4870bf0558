"""Lengths and a side are all that crosses of a mask, and they are enough: the other side rebuilds the same mask."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from splitwire.errors import SettingsError
from tln.context import PaddingSide, row_lengths_of
from ucn.stacks.transformer import padding_mask

LENGTHS = st.integers(1, 9).flatmap(
    lambda positions: st.tuples(st.just(positions), st.lists(st.integers(1, positions), min_size=1, max_size=5))
)


def rebuilt(lengths: tuple[int, ...], side: PaddingSide, shape: tuple[int, ...]) -> torch.Tensor:
    """The mask as the untrusted node has it; None stands for one without padding."""
    mask = padding_mask(lengths, side, shape)
    return torch.ones(shape, dtype=torch.int64) if mask is None else mask.long()


@given(shape=LENGTHS, left=st.booleans())
def test_a_padded_mask_survives_the_crossing(shape: tuple[int, list[int]], left: bool) -> None:
    """For every number of positions, lengths and side."""
    positions, lengths = shape
    count = torch.arange(positions)
    rows = [count >= positions - length if left else count < length for length in lengths]
    mask = torch.stack(rows).long()
    found, side = row_lengths_of(mask)
    assert torch.equal(rebuilt(found, side, (len(lengths), positions)), mask)


@given(bits=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3))
def test_any_mask_is_rebuilt_or_refused(bits: list[list[bool]]) -> None:
    """There is no third outcome, such as a mask that comes out different."""
    mask = torch.tensor(bits).long()
    try:
        lengths, side = row_lengths_of(mask)
    except SettingsError:
        return
    assert torch.equal(rebuilt(lengths, side, mask.shape), mask)
