"""How much noise is on a wire beyond its own rounding, and how much the nearest other token stands out.

Both are mean squares of an entry. Noise is what is left where a guess of the whole text was right: a wrong token shows
at its own position and after it, so the positions that fit best are noise alone. The gap is measured on public text:
rows of the nearest other tokens at places of known text, through the same wire.

Shapes: N pieces, T positions, K candidates, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.token_ranking import TokenRanking
from auditor.attacks.inversion.parts.wire_distance import WireRows, crossed

_GAP_PLACES = 24
_GAP_TOKENS = 16
_RARER_RATIO = (
    16.0  # rare tokens lie nearer to each other than the few that are looked at: at a quarter of the distance
)
_ALIKE_RATIO = 1.5  # mean squares within this ratio of the least are taken for noise as well


def noise_of(wires: Sequence[WireRows], guesses: Sequence[torch.Tensor], head: Prefix) -> float:
    """Variance of the noise that is left of the positions that fit best, of guesses of whole texts [T]."""
    found = []
    for wire, guess_T in zip(wires, guesses, strict=True):
        rows_1TH, _ = head.extend(guess_T[None])
        found.append(wire.residuals(rows_1TH[0].float()).square().sum(-1) / wire.num_known)
    squares_X = torch.cat(found)
    return float(squares_X[squares_X <= _ALIKE_RATIO * squares_X.min()].median())


def gap_of(pieces_NT: torch.Tensor, ranking: TokenRanking, head: Prefix, wire_dtype: str, share_known: float) -> float:
    """The mean square at which no row of another token is expected: well below the least over places of public text."""
    pieces_NT = pieces_NT[:_GAP_PLACES]
    position = pieces_NT.shape[1] - 1
    rows_NTH, whole = head.extend(pieces_NT)
    tokens_N = pieces_NT[:, position]
    scores_NV = ranking.like(tokens_N)
    scores_NV[torch.arange(len(tokens_N)), tokens_N] = -torch.inf
    nearest_NK = scores_NV.topk(min(_GAP_TOKENS, scores_NV.shape[1] - 1)).indices
    candidates_NKH = whole.first(position).candidates(nearest_NK).float()
    wire = WireRows.read(crossed(rows_NTH[:, position].float(), wire_dtype, share_known), wire_dtype)
    return float(wire.mean_squares(slice(None), candidates_NKH).min()) / _RARER_RATIO
