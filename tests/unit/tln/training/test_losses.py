"""The private loss: summed over frames, so one clip fits every batch size."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tln.context import NO_LABEL
from tln.training.losses import LossSettings, cross_entropy_loss, distillation_loss, token_losses


def test_a_rows_gradient_does_not_depend_on_the_number_of_frames() -> None:
    """The first frame's gradient is the same alone and among seven others, for both terms."""
    target, labels = torch.randn(8, 5, 6), torch.randint(0, 11, (8, 5))
    head = torch.randn(6, 11)
    gradients = []
    base = torch.randn(8, 5, 6)
    for num in (1, 8):
        rows = base[:num].clone().requires_grad_()
        loss = distillation_loss(rows, target[:num], LossSettings()) + cross_entropy_loss(rows @ head, labels[:num])
        (gradient,) = torch.autograd.grad(loss, rows)
        gradients.append(gradient[0])
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)


def test_distillation_is_zero_at_the_target_and_ignores_scale_in_its_main_term() -> None:
    """Layer-normed rows are compared; the raw term sees what normalising hides."""
    target = torch.randn(2, 5, 6)
    assert distillation_loss(target, target, LossSettings()).item() == 0
    scaled = 3 * target
    assert distillation_loss(scaled, target, LossSettings(raw_distillation=0.0)).item() < 1e-6
    assert distillation_loss(scaled, target, LossSettings(distillation=0.0, raw_distillation=1.0)).item() > 1


def test_cross_entropy_matches_torch_and_ignores_missing_labels() -> None:
    """Rows without a next token bear no loss; a frame without any bears none and no NaN."""
    logits, labels = torch.randn(2, 4, 7), torch.tensor([[1, 2, NO_LABEL, 3], [NO_LABEL] * 4])
    expected = functional.cross_entropy(logits[0], labels[0], ignore_index=NO_LABEL)
    assert cross_entropy_loss(logits, labels).item() == pytest.approx(expected.item())
    assert token_losses(logits, labels)[1].tolist() == [0, 0, 0, 0]


def test_which_settings_need_targets() -> None:
    """Plain fine-tuning runs without the whole model ever having run."""
    assert LossSettings().needs_targets
    assert not LossSettings(distillation=0.0, raw_distillation=0.0).needs_targets
