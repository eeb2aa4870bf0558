"""Embeddings to tokens: the rows of the embedding table that lie nearest.

Shapes: T positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch

Measure = Literal["euclidean", "cosine"]
_SCORES = 1 << 25  # similarities that are held at once


@torch.no_grad()
def nearest_tokens(embeddings_TH: torch.Tensor, table_VH: torch.Tensor, measure: Measure, count: int) -> torch.Tensor:
    """Tokens [T, count] whose embeddings are nearest, the nearest first."""
    if measure == "cosine":
        table_VH = torch.nn.functional.normalize(table_VH, dim=-1)
        penalty_V = torch.zeros(len(table_VH), device=table_VH.device)
    else:
        penalty_V = table_VH.square().sum(-1) / 2
    chunks = torch.split(embeddings_TH, max(1, _SCORES // len(table_VH)))
    return torch.cat([(chunk @ table_VH.T - penalty_V).topk(count, dim=-1).indices for chunk in chunks])
