"""The 22 features of a row that a secret rotation or permutation of its frame leaves alone.

norm; mean, std, max and min cosine to the other rows; the 8 largest signed cosines; the 8 largest absolute cosines; the
position in [-1, 1]. (The position is no invariant of a permutation: it is what an unpermuted frame gives away.)

Shapes: F frames, R rows, D width.
"""

from __future__ import annotations

import itertools

import torch

NUM_INVARIANTS = 22
_TOP = 8
_MAX_PAIR_VALUES = 1 << 24  # cosines in memory at once
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
    if num_rows == 1:
        return features
    unit = unit_rows(rows_FRD)
    own = torch.eye(num_rows, dtype=torch.bool)
    cosine = unit @ unit.transpose(1, 2)
    others = cosine.masked_select(~own).reshape(*cosine.shape[:2], num_rows - 1)
    features[..., 1] = others.mean(-1)
    features[..., 2] = others.std(-1, correction=0)
    features[..., 3] = others.amax(-1)
    features[..., 4] = others.amin(-1)
    top = min(_TOP, num_rows - 1)
    features[..., 5 : 5 + top] = others.topk(top, dim=-1).values
    features[..., 13 : 13 + top] = others.abs().topk(top, dim=-1).values
    return features


def row_invariants(rows_MD: torch.Tensor, offsets: list[int]) -> torch.Tensor:
    """Invariants [M, 22] of all rows; item f holds rows offsets[f]:offsets[f + 1]. Frames of one length go together."""
    features = torch.zeros(len(rows_MD), NUM_INVARIANTS)
    by_length: dict[int, list[int]] = {}
    for start, end in itertools.pairwise(offsets):
        by_length.setdefault(end - start, []).append(start)
    for length, starts in by_length.items():
        at_once = max(1, _MAX_PAIR_VALUES // (length * length))
        for begin in range(0, len(starts), at_once):
            index = torch.tensor(starts[begin : begin + at_once])[:, None] + torch.arange(length)
            features[index] = frame_invariants(rows_MD[index])
    return features


def standardise(features: torch.Tensor) -> torch.Tensor:
    """Every feature with mean 0 and variance 1 over all rows; no label is needed. A constant feature becomes 0."""
    centred = features - features.mean(0)
    spread = features.std(0, correction=0)
    return centred / torch.where(spread > 1e-7, spread, torch.ones_like(spread))
