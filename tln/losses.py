"""The private loss: distillation at the cut and next-token cross-entropy, both computed on the trusted node.

Each term is a mean over the rows of a frame and a SUM over frames, so the gradient of a row does not depend on how many
frames a step holds, and one gradient clip fits every batch size.

Shapes: B frames, T positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from tln.context import NO_LABEL


@dataclass(frozen=True)
class LossSettings:
    """Weights of the terms. `distillation` compares normalised rows, `raw_distillation` the rows as they are.

    Distillation needs targets of `tln prepare`. Without cross-entropy the tail does not run, which is several times
    faster.
    """

    distillation: float = 1.0
    raw_distillation: float = 0.001
    cross_entropy: float = 1.0

    @property
    def needs_targets(self) -> bool:
        """Whether the delegated layers' true output is needed."""
        return self.distillation > 0 or self.raw_distillation > 0


def distillation_loss(restored_BTH: torch.Tensor, target_BTH: torch.Tensor, settings: LossSettings) -> torch.Tensor:
    """Weighted squared error of layer-normed rows and of raw rows: mean over a frame, sum over frames."""
    width = restored_BTH.shape[-1:]
    restored, target = restored_BTH.float(), target_BTH.float()
    normed = (
        (functional.layer_norm(restored, width) - functional.layer_norm(target, width)).square().mean(dim=(1, 2)).sum()
    )
    raw = (restored - target).square().mean(dim=(1, 2)).sum()
    return settings.distillation * normed + settings.raw_distillation * raw


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
