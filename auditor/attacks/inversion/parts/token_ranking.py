"""Which token each row speaks of, ranked before any is tried: learned within seconds from public text.

The public head runs over pieces of public text in which half of the tokens are replaced by random ones: words that the
public text lacks are then seen too, which matters for every rare token. The first position has moments of its own,
since nothing stands before it and many models put huge values there.

Shapes: N pieces, T positions, H hidden width, E embedding width, V vocabulary, K tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from auditor.arrays import Integers
from auditor.attacks.inversion.parts.gaussian_inverse import GaussianInverse
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces
from auditor.attacks.inversion.parts.wire_distance import WireRows

_PIECE_TOKENS = 64
_UNSEEN = 0.5  # times that a token is taken to have been seen beyond its count
_FIRST_SHRINK = 1e-2  # single tokens are few and their rows nearly alike


@dataclass(frozen=True, eq=False)
class RankingMoments:
    """What was learned, before anything is known of the wire."""

    table: torch.Tensor
    first: GaussianInverse
    later: GaussianInverse
    log_frequency: torch.Tensor
    """Of every token [V] in the public text, smoothed."""
    pieces: torch.Tensor
    """Public pieces as they are, with nothing replaced."""

    @classmethod
    def fit(
        cls,
        head: PublicHead,
        auxiliary: Sequence[Integers],
        *,
        num_tokens: int,
        num_single: int,
        replaced_ratio: float,
        seed: int,
    ) -> RankingMoments:
        """From about `num_tokens` tokens of public text, and `num_single` tokens that stand alone."""
        pieces_NT = pieces_of(auxiliary, _PIECE_TOKENS, max(1, num_tokens // _PIECE_TOKENS), seed)
        generator = torch.Generator().manual_seed(seed)
        random_NT = torch.randint(len(head.table), pieces_NT.shape, generator=generator)
        replaced_NT = torch.rand(pieces_NT.shape, generator=generator) < replaced_ratio
        mixed_NT = torch.where(replaced_NT, random_NT, pieces_NT).to(head.device)
        later = GaussianInverse.fit(
            rows_of_pieces(head, mixed_NT)[:, 1:].flatten(0, 1), head.table[mixed_NT[:, 1:].flatten()]
        )
        public = pieces_NT.flatten()
        drawn = public[torch.randint(len(public), (num_single // 2,), generator=generator)]
        single = torch.cat([drawn, torch.randint(len(head.table), (num_single - len(drawn),), generator=generator)])
        single = single.to(head.device)
        first = GaussianInverse.fit(rows_of_pieces(head, single[:, None])[:, 0], head.table[single], _FIRST_SHRINK)
        counts_V = (
            torch.bincount(torch.from_numpy(np.concatenate(list(auxiliary))), minlength=len(head.table)) + _UNSEEN
        )
        log_frequency_V = (counts_V / counts_V.sum()).log().float().to(head.device)
        return cls(head.table, first, later, log_frequency_V, pieces_NT.to(head.device))

    def ranking(self, rows: WireRows, noise_H: torch.Tensor) -> TokenRanking:
        """For a wire whose rows look like these, with noise of this variance."""
        rounding_H = (rows.half_steps.square() / 3).mean(0)
        variance_H = noise_H + rounding_H
        return TokenRanking(
            self.table,
            self.log_frequency,
            _Ranker.of(self.first, self.table, rows.known[:1], variance_H),
            _Ranker.of(self.later, self.table, rows.known[1:] if len(rows) > 1 else rows.known, variance_H),
        )


@dataclass(frozen=True, eq=False)
class TokenRanking:
    """Log-probability of every token, up to a constant a position: of its row, times how frequent it is."""

    table: torch.Tensor
    log_frequency: torch.Tensor
    first: _Ranker
    later: _Ranker

    def scores(self, rows: WireRows) -> torch.Tensor:
        """Scores [T, V] of all tokens at all positions."""
        first = self.first.scores(self.first.expected(rows.rows[:1], rows.known[:1]))
        if len(rows) == 1:
            return first + self.log_frequency
        later = self.later.scores(self.later.expected(rows.rows[1:], rows.known[1:]))
        return torch.cat([first, later]) + self.log_frequency

    def moved(self, rows: WireRows, position: int, token: int, row_H: torch.Tensor) -> torch.Tensor:
        """Scores [V] given that this token, after the true prefix, has this row: what the context did is then known."""
        ranker = self.later if position else self.first
        step_E = ranker.change(rows.rows[position] - row_H, rows.known[position])
        return ranker.scores((self.table[token] + step_E)[None])[0]

    def like(self, tokens_K: torch.Tensor) -> torch.Tensor:
        """Scores [K, V] of all tokens where these were expected."""
        return self.later.scores(self.table[tokens_K])


@dataclass(frozen=True, eq=False)
class _Ranker:
    """Nearest embeddings in the metric of the error."""

    inverse: GaussianInverse
    noise: torch.Tensor
    whitening: torch.Tensor
    whitened: torch.Tensor
    sizes: torch.Tensor

    @classmethod
    def of(
        cls, inverse: GaussianInverse, table_VE: torch.Tensor, known_TH: torch.Tensor, noise_H: torch.Tensor
    ) -> _Ranker:
        error_EE = inverse.error_covariance(known_TH, noise_H)
        whitening_EE = torch.linalg.cholesky(torch.linalg.inv(error_EE)).float()
        whitened_VE = table_VE @ whitening_EE
        return cls(inverse, noise_H, whitening_EE, whitened_VE, whitened_VE.square().sum(-1) / 2)

    def expected(self, rows_TH: torch.Tensor, known_TH: torch.Tensor) -> torch.Tensor:
        """Expected embeddings [T, E]."""
        return self.inverse.embeddings(rows_TH, known_TH, self.noise).float()

    def change(self, difference_H: torch.Tensor, known_H: torch.Tensor) -> torch.Tensor:
        """By how much the embedding [E] differs where the row differs by this."""
        return (difference_H.double() @ self.inverse.weights(self.noise, known_H)).float()

    def scores(self, expected_TE: torch.Tensor) -> torch.Tensor:
        """Log-likelihoods [T, V] up to a constant a row."""
        whitened_TE = expected_TE @ self.whitening
        return whitened_TE @ self.whitened.T - self.sizes - whitened_TE.square().sum(-1, keepdim=True) / 2
