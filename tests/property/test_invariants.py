"""What a secret gauge leaves alone, for any frame."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.attacks.parts.invariants import frame_invariants

POSITION = 21


def frame(seed: int, rows: int, width: int) -> tuple[torch.Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, rows, width, generator=generator, dtype=torch.float64).float(), generator


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 30), width=st.integers(2, 12))
def test_a_rotation_changes_no_invariant(seed: int, rows: int, width: int) -> None:
    values, generator = frame(seed, rows, width)
    rotation = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0].float()
    torch.testing.assert_close(frame_invariants(values @ rotation), frame_invariants(values), atol=2e-4, rtol=2e-3)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 30), width=st.integers(2, 12))
def test_a_permutation_moves_invariants_with_their_rows_and_keeps_the_place(seed: int, rows: int, width: int) -> None:
    values, generator = frame(seed, rows, width)
    order = torch.randperm(rows, generator=generator)
    plain, moved = frame_invariants(values), frame_invariants(values[:, order])
    torch.testing.assert_close(moved[..., :POSITION], plain[:, order, :POSITION], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(moved[..., POSITION], plain[..., POSITION])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 30), scale=st.floats(1e-6, 1e6))
def test_the_scale_of_a_frame_changes_the_norm_alone(seed: int, rows: int, scale: float) -> None:
    values, _ = frame(seed, rows, 6)
    plain, scaled = frame_invariants(values), frame_invariants(values * scale)
    torch.testing.assert_close(scaled[..., 1:], plain[..., 1:], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(scaled[..., 0], plain[..., 0] * scale, rtol=1e-4, atol=0)
