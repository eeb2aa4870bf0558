"""Gradient rows for decoys: from earlier steps, of the frame's own scale, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from splitwire.errors import StateError
from tln.context import StepContext
from tln.keys import FrameKeys
from tln.mechanisms.matched_gradient import MatchedGradient


def _rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _filled(keys: FrameKeys) -> MatchedGradient:
    matched = MatchedGradient(40, "gram", keys)
    matched.absorb_gradient(_rows(10, 4, 8))
    return matched


def _half_zero(scale: float = 1.0) -> torch.Tensor:
    gradient = _rows(3, 6, 8, seed=2) * scale
    gradient[:, 4:] = 0
    return gradient


def test_real_rows_keep_their_gradient_and_decoys_get_one(frame_keys: FrameKeys) -> None:
    """Through autograd: forward nothing changes, backward the zero rows alone are filled."""
    matched, returned = _filled(frame_keys), _rows(3, 6, 8, seed=3).requires_grad_()
    restored = matched.restore(returned, StepContext(1, mode="train"))
    assert torch.equal(restored, returned)
    gradient = _half_zero()
    restored.backward(gradient)  # type: ignore[no-untyped-call]
    assert returned.grad is not None
    assert torch.equal(returned.grad[:, :4], gradient[:, :4])
    assert returned.grad[:, 4:].any(dim=-1).all()


def test_decoy_rows_come_from_earlier_rows_at_the_scale_of_the_frame(frame_keys: FrameKeys) -> None:
    """Each is parallel to a pool row and to no row of its own step, and grows with the frame."""
    norms = []
    for scale in (1.0, 1000.0):
        matched, earlier = _filled(frame_keys), _rows(10, 4, 8).flatten(0, 1)
        filled = matched.fill(_half_zero(scale), 1)[:, 4:].flatten(0, 1)
        own = _half_zero()[:, :4].flatten(0, 1)
        cosines = torch.nn.functional.normalize(filled) @ torch.nn.functional.normalize(torch.cat((earlier, own))).T
        best = cosines.max(dim=1)
        assert (best.values > 1 - 1e-5).all()
        assert (best.indices < len(earlier)).all()
        norms.append(filled.norm(dim=-1))
    assert torch.allclose(norms[1], 1000 * norms[0], rtol=1e-4)


def test_no_row_twice_in_a_frame_and_fresh_rows_every_step(frame_keys: FrameKeys) -> None:
    """A pair of equal rows would name both."""
    matched = _filled(frame_keys)
    gradient = torch.zeros(2, 30, 8)
    gradient[:, 0] = 1.0
    first = matched.fill(gradient, 1)
    assert len({tuple(row) for row in first[0].tolist()}) == 30
    assert not torch.equal(first, matched.fill(gradient, 2))


def test_a_sequence_is_filled_as_a_whole(frame_keys: FrameKeys) -> None:
    """On the transformer stack the norms along a sequence belong together."""
    matched = MatchedGradient(4, "transformer", frame_keys)
    earlier = _rows(4, 5, 8)
    matched.absorb_gradient(earlier)
    gradient = _rows(3, 5, 8, seed=2)
    gradient[1] = 0
    filled = matched.fill(gradient, 1)[1].flatten()
    cosines = torch.nn.functional.cosine_similarity(filled.unsqueeze(0), earlier.flatten(1))
    assert cosines.max() > 1 - 1e-5


def test_a_frame_without_any_loss_takes_the_scale_of_the_others(frame_keys: FrameKeys) -> None:
    """Its rows are neither zero nor of size one; a step without any loss is filled all the same."""
    gradient = _half_zero(1000.0)
    gradient[0] = 0
    filled = _filled(frame_keys).fill(gradient, 1)
    assert 0.1 < filled[0].norm(dim=-1).mean() / filled[1].norm(dim=-1).mean() < 10
    assert _filled(frame_keys).fill(torch.zeros(2, 6, 8), 1).any(dim=-1).all()


def test_nothing_is_filled_before_the_pool_is_full(frame_keys: FrameKeys) -> None:
    """No gradient crosses with fewer filled rows; evaluation has none."""
    matched = MatchedGradient(40, "gram", frame_keys)
    assert matched.needs_gradients
    assert not matched.is_ready
    with pytest.raises(StateError, match="0 of 40"):
        matched.fill(_half_zero(), 1)
    assert _filled(frame_keys).is_ready
    rows = _rows(1, 6, 8)
    assert matched.restore(rows, StepContext(1)) is rows


def test_the_pool_survives_a_checkpoint(frame_keys: FrameKeys) -> None:
    """The step after a resumption is filled with the same rows."""
    matched, resumed = _filled(frame_keys), MatchedGradient(40, "gram", frame_keys)
    resumed.load_state(matched.state())
    assert torch.equal(matched.fill(_half_zero(), 1), resumed.fill(_half_zero(), 1))
