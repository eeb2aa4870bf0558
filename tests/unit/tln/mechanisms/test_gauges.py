"""Permutation and rotation: undone exactly, fresh every frame and step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Mechanism
from tln.mechanisms.permutation import Permutation
from tln.mechanisms.rotation import Rotation
from tln.pipeline import truth_of


@pytest.mark.parametrize("kind", [Permutation, Rotation])
def test_restore_undoes_protect_and_frames_differ(kind: type[Mechanism], frame_keys: FrameKeys) -> None:
    """What comes back unchanged is what went out; two frames of a step and two steps of a frame differ."""
    mechanism = kind(frame_keys)  # type: ignore[arg-type]
    rows = torch.randn(1, 9, 16).expand(2, 9, 16)
    contexts = StepContext(1), StepContext(2)
    first, second = (mechanism.protect(ProtectedFrame(rows), context).rows for context in contexts)
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(first, second)
    assert torch.allclose(mechanism.restore(first, contexts[0]), rows, atol=1e-5)


def test_truth_moves_with_the_rows(frame_keys: FrameKeys, step_context: Callable[..., StepContext]) -> None:
    """The sealed truth names each wire row by what stands there."""
    context = step_context(1, 3, 6)
    rows = context.tokens.float().unsqueeze(-1).expand(3, 6, 4)  # type: ignore[union-attr]
    frame = Permutation(frame_keys).protect(ProtectedFrame(rows, truth_of(context)), context)
    assert frame.truth is not None
    assert torch.equal(frame.rows[..., 0].long(), frame.truth.token)
    assert torch.equal(frame.truth.order, frame.truth.token % 100)


def test_rotation_keeps_what_it_says_it_keeps(frame_keys: FrameKeys) -> None:
    """Norms and inner products within a frame stay readable; the docstring says so and the audit relies on it."""
    rows = torch.randn(2, 9, 16)
    rotated = Rotation(frame_keys).protect(ProtectedFrame(rows), StepContext(1)).rows
    assert torch.allclose(rotated @ rotated.transpose(1, 2), rows @ rows.transpose(1, 2), atol=1e-4)
