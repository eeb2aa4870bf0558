"""The private loss: distillation at the cut and next-token cross-entropy, both computed on the trusted node.

Each term is a mean over the rows of a frame and a SUM over frames, so the gradient of a row does not depend on how many
frames a step holds, and one gradient clip fits every batch size.

Shapes: B frames, T positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from splitwire.backbone.parts import TailModel
from splitwire.errors import SettingsError
from tln.context import NO_LABEL


@dataclass(frozen=True)
class LossSettings:
    """Weights of the terms. `distillation` compares normalised rows, `raw_distillation` the rows as they are.

    Distillation needs targets of `tln prepare`. Without cross-entropy the tail does not run, which is several times
    faster.
    """

    distillation: float = 1.0
    """Weight of the squared error of layer-normed rows against the unsplit model's."""
    raw_distillation: float = 0.001
    """Weight of the squared error of the rows as they are."""
    cross_entropy: float = 1.0
    """Weight of the next-token cross-entropy; 0 leaves the tail out and is several times faster."""

    @property
    def needs_targets(self) -> bool:
        """Whether the delegated layers' true output is needed."""
        return self.distillation > 0 or self.raw_distillation > 0


def distillation_loss(
    restored_BTH: torch.Tensor,
    target_BTH: torch.Tensor,
    settings: LossSettings,
    sent_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weighted squared error of layer-normed rows and of raw rows: mean over a frame's sent rows, sum over frames."""
    width = restored_BTH.shape[-1:]
    restored, target = restored_BTH.float(), target_BTH.float()
    normed = (functional.layer_norm(restored, width) - functional.layer_norm(target, width)).square()
    raw = (restored - target).square()
    return settings.distillation * _by_frame(normed, sent_BT) + settings.raw_distillation * _by_frame(raw, sent_BT)


def _by_frame(errors_BTH: torch.Tensor, sent_BT: torch.Tensor | None) -> torch.Tensor:
    if sent_BT is None:
        return errors_BTH.mean(dim=(1, 2)).sum()
    sent = sent_BT.to(errors_BTH)
    return ((errors_BTH.mean(dim=2) * sent).sum(dim=1) / sent.sum(dim=1).clamp_min(1)).sum()


def token_losses(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each row in nats, float32 [B, T]; 0 where there is no label."""
    losses = functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=NO_LABEL, reduction="none"
    )
    return losses.view(labels_BT.shape)


def cross_entropy_loss(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Mean over the labelled rows of a frame, sum over frames."""
    counts = (labels_BT != NO_LABEL).sum(dim=1).clamp_min(1)
    return (token_losses(logits_BTV, labels_BT).sum(dim=1) / counts).sum()


@dataclass(frozen=True)
class PrivateLoss:
    """`total` to take the gradient of, and its parts a frame for display. TLN only."""

    total: torch.Tensor
    distillation: float
    cross_entropy: float


def private_loss(
    tail: TailModel,
    restored_BTH: torch.Tensor,
    target_BTH: torch.Tensor | None,
    labels_BT: torch.Tensor,
    settings: LossSettings,
    sent_BT: torch.Tensor | None = None,
) -> PrivateLoss:
    """The weighted sum of the terms that are on. `target_BTH` is needed for distillation.

    Rows that `sent_BT` leaves out bear no distillation; the caller gives them no label.
    """
    total = restored_BTH.new_zeros(())
    distillation = cross_entropy = 0.0
    if settings.needs_targets:
        if target_BTH is None:
            raise SettingsError(
                "loss.distillation needs targets", remedy="run tln prepare, or set both distillation weights to 0"
            )
        term = distillation_loss(restored_BTH, target_BTH, settings, sent_BT)
        total, distillation = total + term, term.item() / len(labels_BT)
    if settings.cross_entropy > 0:
        logits = tail.logits(tail(restored_BTH))
        term = cross_entropy_loss(logits, labels_BT.to(logits.device))
        total, cross_entropy = total + settings.cross_entropy * term, term.item() / len(labels_BT)
    return PrivateLoss(total, distillation, cross_entropy)


def check_loss(settings: LossSettings) -> None:
    """SettingsError for negative weights and for a loss without any term."""
    for name in ("distillation", "raw_distillation", "cross_entropy"):
        if getattr(settings, name) < 0:
            raise SettingsError(f"loss.{name} is {getattr(settings, name)}", remedy="use 0 (off) or a weight above 0")
    if not settings.needs_targets and settings.cross_entropy == 0:
        raise SettingsError("every weight in [loss] is 0", remedy="set at least one above 0")
