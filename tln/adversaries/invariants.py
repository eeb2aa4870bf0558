"""What of a row survives a secret rotation and permutation of its frame: 22 features that a node without keys reads.

Norm; mean, deviation, largest and smallest cosine to the other rows; the 8 largest cosines; the 8 largest absolute
cosines; the place in [-1, 1]. The place is 0 where the frame is permuted, since then it tells nothing. Every feature
is differentiable, so that the encoder can be trained against what reads it.

Shapes: N frames, R rows, D width.
"""

from __future__ import annotations

import torch

NUM_INVARIANTS = 22
_TOP = 8
_EPSILON = 1e-12


def frame_invariants(rows_NRD: torch.Tensor, *, with_place: bool) -> torch.Tensor:
    """Features [N, R, 22]; those that a frame of few rows does not have are 0."""
    num, num_rows, _ = rows_NRD.shape
    norm = torch.linalg.vector_norm(rows_NRD, dim=-1, keepdim=True)
    if num_rows == 1:
        return torch.cat((norm, rows_NRD.new_zeros(num, 1, NUM_INVARIANTS - 1)), dim=-1)
    others = other_cosines(rows_NRD)
    top = min(_TOP, num_rows - 1)
    missing = rows_NRD.new_zeros(num, num_rows, _TOP - top)
    place = torch.linspace(-1, 1, num_rows).to(norm) if with_place else norm.new_zeros(num_rows)
    return torch.cat(
        (
            norm,
            others.mean(dim=-1, keepdim=True),
            (others.var(dim=-1, correction=0, keepdim=True) + _EPSILON).sqrt(),
            others.amax(dim=-1, keepdim=True),
            others.amin(dim=-1, keepdim=True),
            others.topk(top, dim=-1).values,
            missing,
            others.abs().topk(top, dim=-1).values,
            missing,
            place.view(1, num_rows, 1).expand(num, -1, -1),
        ),
        dim=-1,
    )


def other_cosines(rows_NRD: torch.Tensor) -> torch.Tensor:
    """Cosines [N, R, R - 1] of each row to every other row of its frame."""
    norm = torch.linalg.vector_norm(rows_NRD, dim=-1, keepdim=True)
    unit = rows_NRD / norm.clamp_min(_EPSILON)
    num, num_rows, _ = rows_NRD.shape
    other = ~torch.eye(num_rows, dtype=torch.bool, device=rows_NRD.device)
    cosines: torch.Tensor = (unit @ unit.transpose(1, 2))[:, other].view(num, num_rows, num_rows - 1)
    return cosines


def gram_spread(rows_NRD: torch.Tensor) -> torch.Tensor:
    """How far a frame's Gram matrix of unit rows is from a flat one: the variance of its cosines, [N].

    A flat Gram matrix looks the same for every text, so what a rotation keeps would tell nothing. Source: the Gram
    flattening regulariser of Privacy Failure in Split-LLM Training.
    """
    if rows_NRD.shape[1] < 2:  # one row has no cosine
        return rows_NRD.new_zeros(len(rows_NRD))
    return other_cosines(rows_NRD).flatten(1).var(dim=1, correction=0)
