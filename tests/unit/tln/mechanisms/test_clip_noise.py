"""Clipping before the pool, noise after the decoys."""

from __future__ import annotations

import torch

from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.clip_noise import ClipRows, NoiseRows, clip_rows


def test_long_rows_are_clipped_and_short_rows_stay() -> None:
    """Norms end at the clip, directions stay, a zero row stays zero."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clip_rows(rows, 1.0)
    assert torch.allclose(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_norms_are_computed_in_float32() -> None:
    """Squares of half-precision rows overflow; the clip must not turn them into zeros."""
    clipped = clip_rows(torch.full((1, 64), 1000.0, dtype=torch.float16), 1.0)
    assert clipped.dtype == torch.float16
    assert abs(clipped.float().norm().item() - 1.0) < 0.01


def test_clipping_has_a_finite_gradient_at_zero() -> None:
    """A row of zeros must not poison the encoder with NaN."""
    rows = torch.zeros(1, 3, 4, requires_grad=True)
    clip_rows(rows, 1.0).sum().backward()
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()


def test_noise_changes_every_row_and_is_fresh_every_step(frame_keys: FrameKeys) -> None:
    """The mechanism took effect, with the stated standard deviation, and never the same twice."""
    noise = NoiseRows(0.35, frame_keys)
    rows = torch.zeros(8, 20, 64)
    first, second = (noise.protect(ProtectedFrame(rows), StepContext(step)).rows for step in (1, 2))
    assert (first != rows).any(dim=-1).all()
    assert not torch.equal(first, second)
    assert abs(first.std().item() - 0.35) < 0.01


def test_a_step_protected_again_is_the_same_bytes(frame_keys: FrameKeys) -> None:
    """A retry after a crash must not be a second release with other noise."""
    noise, rows = NoiseRows(0.35, frame_keys), torch.randn(2, 3, 8)
    first, again = (noise.protect(ProtectedFrame(rows), StepContext(7)).rows for _ in range(2))
    assert torch.equal(first, again)


def test_gradients_pass_clip_and_noise(frame_keys: FrameKeys) -> None:
    """Noise is additive: what flows back is the gradient of the clip alone."""
    rows = torch.randn(2, 3, 8, requires_grad=True)
    context = StepContext(1)
    frame = NoiseRows(0.1, frame_keys).protect(ClipRows(100.0).protect(ProtectedFrame(rows), context), context)
    frame.rows.sum().backward()
    assert rows.grad is not None
    assert torch.allclose(rows.grad, torch.ones_like(rows))
