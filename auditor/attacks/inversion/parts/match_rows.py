"""Changes a guess until the public head makes of it the rows that crossed.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from auditor.attacks.inversion.parts.descent import Descent, descend
from auditor.attacks.inversion.parts.matching import Distance, Target
from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.progress import Tick

Optimizer = Literal["adam", "adamw", "sgd"]
_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Matching:
    """How a guess is changed: for so many steps at most, and what is made small."""

    distance: Distance
    optimizer: Optimizer
    learning_rate: float
    num_steps: int
    patience_steps: int = 0
    """Ends when the loss has not fallen by a thousandth for so many steps; 0: never."""


def match_rows(
    head: PublicHead,
    target: Target,
    start: torch.Tensor,
    how: Matching,
    tick: Tick,
    *,
    embed: Callable[[torch.Tensor], torch.Tensor] | None = None,
    penalty: Callable[[torch.Tensor], torch.Tensor] | None = None,
    constrain: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, Descent]:
    """The guess with the least loss, begun at `start`, and the mean loss of a position.

    A guess is embeddings [T, H], or whatever `embed` makes embeddings of; when it makes more than T of them, the target
    is that of the last T. The penalty of the embeddings is added to the mean distance; `constrain` gives what replaces
    the guess after a step. Positions add up, so that each moves as if it were alone.
    """
    guess = start.to(head.device, torch.float32).clone().requires_grad_(True)
    num_positions = len(target.rows)

    def loss_of() -> torch.Tensor:
        embeddings_TH = guess if embed is None else embed(guess)
        rows_TH = head.rows(embeddings_TH[None])[0, -num_positions:]
        loss = target.distance(rows_TH, how.distance).mean()
        if penalty is not None:
            loss = loss + penalty(embeddings_TH)
        return num_positions * loss

    def keep_within() -> None:
        if constrain is not None:
            guess.copy_(constrain(guess))

    optimizer = _OPTIMIZERS[how.optimizer]([guess], lr=how.learning_rate)
    found = descend(
        guess, optimizer, loss_of, how.num_steps, tick, patience_steps=how.patience_steps, constrain=keep_within
    )
    return guess.detach(), Descent(found.loss / num_positions, found.num_steps)


def random_rows(head: PublicHead, num_positions: int, generator: torch.Generator) -> torch.Tensor:
    """Embeddings [T, H] of random tokens."""
    tokens_T = torch.randint(len(head.table), (num_positions,), generator=generator)
    return head.table[tokens_T.to(head.device)]
