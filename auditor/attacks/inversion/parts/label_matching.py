"""Soft labels whose gradient matches the one that crossed.

The weight of a row in the loss is unknown, so the guess's gradient is brought to the norm of the observed one before
they are compared. The factor counts as a constant: it never turns a step around.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from auditor.attacks.inversion.parts.tail_gradient import TailGradient

Distance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes the gradient of the guess and the observed one, both [T, H]; a scalar."""

_TINY = 1e-30


class LabelMatch:
    """The loss of label logits [T, V] for one text under one distance."""

    def __init__(self, gradient: TailGradient, distance: Distance) -> None:
        self._gradient = gradient
        self._distance = distance
        self._observed_TH = gradient.observed / gradient.observed.norm().clamp_min(_TINY)

    def loss(self, logits_TV: torch.Tensor) -> torch.Tensor:
        """Distance of the gradient that softmax(logits) would have made."""
        guess_TH = self._gradient.of_labels(logits_TV.softmax(-1))
        factor = 1 / guess_TH.detach().norm().clamp_min(_TINY)
        return self._distance(factor * guess_TH, self._observed_TH)


def squared(guess_TH: torch.Tensor, observed_TH: torch.Tensor) -> torch.Tensor:
    """Squared difference as a share of the observed squares."""
    return (guess_TH - observed_TH).square().sum() / observed_TH.square().sum().clamp_min(_TINY)


def absolute(guess_TH: torch.Tensor, observed_TH: torch.Tensor) -> torch.Tensor:
    """Absolute difference as a share of the observed absolute values."""
    return (guess_TH - observed_TH).abs().sum() / observed_TH.abs().sum().clamp_min(_TINY)


def by_row_norm(guess_TH: torch.Tensor, observed_TH: torch.Tensor) -> torch.Tensor:
    """Absolute difference, each row weighted by its share of the observed norm and taken as a share of its own size."""
    norms_T = observed_TH.norm(dim=-1)
    shares_T = (guess_TH - observed_TH).abs().sum(-1) / observed_TH.abs().sum(-1).clamp_min(_TINY)
    weighted: torch.Tensor = (shares_T * norms_T).sum() / norms_T.sum().clamp_min(_TINY)
    return weighted


def cosine(guess_TH: torch.Tensor, observed_TH: torch.Tensor) -> torch.Tensor:
    """1 less the cosine of the two as wholes."""
    return 1 - torch.nn.functional.cosine_similarity(guess_TH.flatten(), observed_TH.flatten(), dim=0, eps=_TINY)


def random_logits(gradient: TailGradient, deviation: float, generator: torch.Generator) -> torch.Tensor:
    """Label logits [T, V] from a normal with this deviation, which the gradient attacks start from.

    More tokens than hidden channels leave many soft labels with one gradient, so what is found depends on the start.
    """
    start_TV = deviation * torch.randn(gradient.probabilities.shape, generator=generator)
    return start_TV.to(gradient.probabilities.device)
