"""Keeps embeddings distributed like those of the vocabulary, by distribution matching.

The mean features of a guess are drawn to those of as many random vocabulary rows, under random networks that are drawn
anew at every step (Zhao and Bilen, 2023; Dong et al., 2025, section 4.2).

Shapes: T positions, H hidden width, F features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from auditor.attacks.inversion.parts.match_rows import random_rows
from auditor.attacks.inversion.parts.public_head import PublicHead

_FEATURES = 128


def distribution_penalty(
    head: PublicHead, weight: float, generator: torch.Generator
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A penalty for embeddings [T, H]; None for a weight of 0."""
    if weight == 0:
        return None
    width = head.table.shape[1]

    def penalty(embeddings_TH: torch.Tensor) -> torch.Tensor:
        first_HF = torch.randn(width, _FEATURES, generator=generator).to(head.device) / width**0.5
        second_FF = torch.randn(_FEATURES, _FEATURES, generator=generator).to(head.device) / _FEATURES**0.5
        vocabulary_TH = random_rows(head, len(embeddings_TH), generator)

        def mean_features(rows_TH: torch.Tensor) -> torch.Tensor:
            features_TF: torch.Tensor = torch.relu(rows_TH @ first_HF) @ second_FF
            return features_TF.mean(0)

        difference: torch.Tensor = (mean_features(embeddings_TH) - mean_features(vocabulary_TH)).norm()
        return weight * difference

    return penalty
