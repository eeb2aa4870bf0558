"""From a score for every label to a guess: the label of a row is the token at the position after it.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.parts.each_text import Guess


def labels_guess(scores_TV: torch.Tensor, observed_TH: torch.Tensor, details: Mapping[str, Any] | None = None) -> Guess:
    """The best label of every row, its score within 0 to 1 as certainty; none for the rows that carry no gradient.

    A row without any gradient has no label, nor has one after it that attends to it.
    """
    best = scores_TV.max(-1)
    silent_T = observed_TH.abs().amax(-1) == 0
    labels_T = best.indices.masked_fill(silent_T, NO_GUESS)
    certainty_T = best.values.clamp(0, 1).masked_fill(silent_T, 0)
    tokens_T = torch.cat([labels_T.new_full((1,), NO_GUESS), labels_T[:-1]])
    unsure = certainty_T.new_zeros(1)
    return Guess(tokens_T, int(labels_T[-1]), torch.cat([unsure, certainty_T]), details or {})
