"""One text after another: a generator of its own for each, its time, and progress.

Shapes: T positions of one text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from auditor.attacks.inversion.base import NO_GUESS, Recovered
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView

_TICKS = 1000


@dataclass(frozen=True, eq=False)
class Guess:
    """Tokens [T] of one text, the token that follows, and how sure the attack is of each [T + 1] if it tells."""

    tokens: torch.Tensor
    following: int = NO_GUESS
    certainty: torch.Tensor | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def likeliest(cls, scores_TC: torch.Tensor, classes_C: torch.Tensor) -> Guess:
        """The class of the largest score at each position, with its probability; none for the token that follows."""
        best = scores_TC.softmax(-1).max(-1)
        return cls(classes_C[best.indices], certainty=torch.nn.functional.pad(best.values, (0, 1)))


def recover_each(
    name: str,
    view: PromptView,
    progress: Progress,
    recover: Callable[[CapturedText, torch.Generator, Tick], Guess],
    *,
    fit_seconds: float | None = None,
) -> list[Recovered]:
    """What `recover` makes of every text. Each generator depends on the view's seed and the text's number alone."""
    recovered = []
    for number, text in enumerate(view.texts):
        label, first = f"{name}: text {number + 1} of {len(view.texts)}", number * _TICKS

        def tick(share: float, label: str = label, first: int = first) -> None:
            progress(label, first + round(share * _TICKS), len(view.texts) * _TICKS)

        tick(0.0)
        generator = torch.Generator().manual_seed(view.seed * 1_000_003 + number)
        began = time.perf_counter()
        guess = recover(text, generator, tick)
        recovered.append(_recovered(guess, time.perf_counter() - began))
        tick(1.0)
    if fit_seconds is not None and recovered:
        first_text = recovered[0]
        details = {**first_text.details, "fit_seconds": fit_seconds}
        recovered[0] = Recovered(first_text.tokens, first_text.seconds, first_text.certainty, details)
    return recovered


def read_each(
    name: str,
    view: PromptView,
    progress: Progress,
    read: Callable[[torch.Tensor], Guess],
    *,
    fit_seconds: float,
) -> list[Recovered]:
    """What a trained reader makes of the forward rows [T, H] of every text; it needs no randomness and no time."""
    return recover_each(
        name, view, progress, lambda text, _generator, _tick: read(text.forward), fit_seconds=fit_seconds
    )


def _recovered(guess: Guess, seconds: float) -> Recovered:
    tokens = np.append(guess.tokens.cpu().numpy().astype(np.int64), guess.following)
    certainty = None if guess.certainty is None else guess.certainty.cpu().numpy().astype(np.float64)
    return Recovered(tokens, seconds, certainty, guess.details)
