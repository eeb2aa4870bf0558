"""Gradient descent on a guess: keeps the best iterate, stops early when asked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from auditor.progress import Tick

_IMPROVEMENT = 1e-3  # share of the best loss that counts as an improvement


@dataclass(frozen=True)
class Descent:
    """The least loss, and how many steps were taken."""

    loss: float
    num_steps: int

    def details(self) -> dict[str, float | int]:
        """Both, for the details of a result."""
        return {"loss": self.loss, "num_steps": self.num_steps}


def descend(
    guess: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[], torch.Tensor],
    num_steps: int,
    tick: Tick,
    *,
    patience_steps: int = 0,
    constrain: Callable[[], None] | None = None,
) -> Descent:
    """Takes steps on `guess` and leaves in it the iterate with the least loss.

    Ends early when the loss has not fallen by a thousandth for `patience_steps` (0: never). `constrain` runs after
    every step, without gradients.
    """
    best_loss, best = float("inf"), guess.detach().clone()
    told_loss, told_step = float("inf"), 0
    step = 0
    while step < num_steps:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        value = float(loss.detach())
        if value < best_loss:
            best_loss = value
            best.copy_(guess.detach())
        if value < told_loss * (1 - _IMPROVEMENT):
            told_loss, told_step = value, step
        if patience_steps and step - told_step >= patience_steps:
            break
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if constrain is not None:
            with torch.no_grad():
                constrain()
        step += 1
        tick(step / num_steps)
    with torch.no_grad():
        guess.copy_(best)
    return Descent(best_loss, step)
