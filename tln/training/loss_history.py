"""The losses of a training run, step by step. TLN only: they are of private text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass
class History:
    """One entry a step: loss a frame and its parts, in nats or squared error. TLN only.

    Steps of the public phase are in `public_loss` and in `seconds`, and nowhere else.
    """

    loss: list[float] = field(default_factory=list)
    distillation: list[float] = field(default_factory=list)
    cross_entropy: list[float] = field(default_factory=list)
    public_loss: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint, in float64."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in vars(self).items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `state` gave."""
        for name in vars(self):
            setattr(self, name, tensors[name].tolist())


def mean_of_last(values: list[float], share: float = 0.1) -> float:
    """The mean of the last tenth, at least one value; what a report gives as the final loss."""
    last = values[-max(1, math.ceil(share * len(values))) :]
    return sum(last) / len(last)
