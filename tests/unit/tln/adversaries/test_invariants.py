"""What the adversaries read of a frame is what a node without keys can read of it."""

from __future__ import annotations

import pytest
import torch

from auditor.attacks.parts import invariants as auditors
from tln.adversaries.invariants import NUM_INVARIANTS, frame_invariants, gram_spread
from tln.keys import RunKey


@pytest.mark.parametrize("num_rows", [1, 2, 5, 40])
def test_they_are_the_features_that_the_audit_attacks_with(num_rows: int) -> None:
    """Written twice, since the two programs share nothing; equal within rounding."""
    rows = torch.randn(3, num_rows, 16)
    ours = frame_invariants(rows, with_place=True)
    assert ours.shape == (3, num_rows, NUM_INVARIANTS)
    theirs = auditors.frame_invariants(rows)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)


def test_gauges_leave_them_alone() -> None:
    """Rotation changes nothing, permutation moves rows with their features; the place is left out there."""
    stream = RunKey(bytes(32)).stream("test", 1, "gauges")
    rows = torch.randn(2, 12, 16)
    order = torch.from_numpy(stream.permutations(1, 12)[0])
    gauged = rows[:, order] @ stream.rotations(2, 16).float()
    torch.testing.assert_close(
        frame_invariants(gauged, with_place=False),
        frame_invariants(rows, with_place=False)[:, order],
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("num_rows", [2, 12])
def test_they_are_differentiable(num_rows: int) -> None:
    """Gradients are right and finite, also where the deviation of the cosines is 0."""
    rows = torch.randn(2, num_rows, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    features = frame_invariants(rows.requires_grad_(), with_place=False)
    (gradient,) = torch.autograd.grad(features.square().sum(), rows)
    assert torch.isfinite(gradient).all()
    if num_rows > 2:
        torch.autograd.gradcheck(lambda values: frame_invariants(values, with_place=False), (rows,))


def test_a_flat_gram_matrix_has_no_spread() -> None:
    """Rows that all have the same cosine to each other, whatever their lengths; text in two groups has spread."""
    flat = torch.eye(6).unsqueeze(0) * torch.rand(1, 6, 1)
    groups = torch.cat((torch.ones(1, 3, 6), -torch.ones(1, 3, 6)), dim=1)
    assert gram_spread(flat).item() < 1e-12
    assert gram_spread(groups).item() > 0.5
    assert gram_spread(torch.randn(2, 1, 6)).tolist() == [0.0, 0.0]
