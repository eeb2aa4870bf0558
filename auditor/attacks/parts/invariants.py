"""The 22 features of a row that a secret rotation or permutation of its frame leaves alone.

norm; mean, std, max and min cosine to the other rows; the 8 largest signed cosines; the 8 largest absolute cosines; the
position in [-1, 1]. (The position is no invariant of a permutation: it is what an unpermuted frame gives away.)

Shapes: F frames, R rows, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

NUM_INVARIANTS = 22
NUM_PAIR_STATISTICS = 20
_TOP = 8
_MAX_PAIR_VALUES = 1 << 22  # cosines in memory at once
_EPSILON = 1e-12


def unit_rows(rows_FRD: torch.Tensor) -> torch.Tensor:
    """Rows of length one; a zero row stays zero."""
    length: torch.Tensor = rows_FRD.norm(dim=-1, keepdim=True).clamp_min(_EPSILON)
    return rows_FRD / length


def frame_invariants(rows_FRD: torch.Tensor) -> torch.Tensor:
    """Invariants [F, R, 22] of frames of equal length."""
    num_rows = rows_FRD.shape[1]
    position = torch.linspace(-1, 1, num_rows) if num_rows > 1 else torch.zeros(1)
    norm = rows_FRD.norm(dim=-1)
    features = torch.zeros(*rows_FRD.shape[:2], NUM_INVARIANTS)
    features[..., 0] = norm
    features[..., 21] = position.expand_as(norm)
    unit = unit_rows(rows_FRD)
    features[..., 1:21] = pair_statistics(unit @ unit.transpose(1, 2))
    return features


def pair_statistics(values_FRR: torch.Tensor) -> torch.Tensor:
    """What each row's values [F, R, R] with the other rows are like, the diagonal left out [F, R, 20].

    Mean, standard deviation, largest, smallest; the 8 largest; the 8 largest in absolute value. Zeros without others.
    """
    num_rows = values_FRR.shape[1]
    features = torch.zeros(*values_FRR.shape[:2], NUM_PAIR_STATISTICS)
    if num_rows == 1:
        return features
    own = torch.eye(num_rows, dtype=torch.bool)
    others = values_FRR.masked_select(~own).reshape(*values_FRR.shape[:2], num_rows - 1)
    features[..., 0] = others.mean(-1)
    features[..., 1] = others.std(-1, correction=0)
    features[..., 2] = others.amax(-1)
    features[..., 3] = others.amin(-1)
    top = min(_TOP, num_rows - 1)
    features[..., 4 : 4 + top] = others.topk(top, dim=-1).values
    features[..., 12 : 12 + top] = others.abs().topk(top, dim=-1).values
    return features


def row_invariants(rows_MD: torch.Tensor, offsets: list[int]) -> torch.Tensor:
    """Invariants [M, 22] of all rows; item f holds rows offsets[f]:offsets[f + 1]."""
    return of_frames(frame_invariants, rows_MD, offsets, NUM_INVARIANTS)


def of_frames(
    compute: Callable[[torch.Tensor], torch.Tensor], rows_MD: torch.Tensor, offsets: Sequence[int], num_features: int
) -> torch.Tensor:
    """Features [M, K] that `compute` gives of frames [F, R, D]. Frames of one length go together."""
    features = torch.zeros(len(rows_MD), num_features)
    by_length: dict[int, list[int]] = {}
    for start, end in itertools.pairwise(offsets):
        by_length.setdefault(end - start, []).append(start)
    for length, starts in by_length.items():
        at_once = max(1, _MAX_PAIR_VALUES // (length * length))
        for begin in range(0, len(starts), at_once):
            index = torch.tensor(starts[begin : begin + at_once])[:, None] + torch.arange(length)
            features[index] = compute(rows_MD[index])
    return features


def standardise(features: torch.Tensor) -> torch.Tensor:
    """Every feature with mean 0 and variance 1 over all rows; no label is needed. A constant feature becomes 0."""
    centred = features - features.mean(0)
    spread = features.std(0, correction=0)
    centred /= torch.where(spread > 1e-7, spread, torch.ones_like(spread))
    return centred
