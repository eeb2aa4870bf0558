"""Exact inversion where the wire leaves no doubt: guess the whole text, check it in one pass, search where it fails.

A wrong token changes every row after it, so the first position that does not match is the only one that is known to be
wrong. There candidates are tried in growing batches after the true prefix; the row of the nearest one tells what the
context did, and by that the next batch is ranked anew. A third of each batch is what is frequent or what the language
model expects: commas and quotes are hard to tell apart by rows alone.
Then the rest is checked again, from that position on.

Shapes: T positions of one text, K candidates, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.found import Found
from auditor.attacks.inversion.parts.language_prefix import LanguagePrefix
from auditor.attacks.inversion.parts.token_ranking import TokenRanking
from auditor.attacks.inversion.parts.wire_distance import WireRows


@dataclass(frozen=True)
class Batches:
    """How many candidates are tried at a position, one batch after another, then the whole vocabulary."""

    sizes: tuple[int, ...]
    most_tokens: int
    """Candidates of one text; past it a position gets the first batch alone."""
    most_sweeps: int
    """Positions of one text at which the whole vocabulary is tried."""


@dataclass(eq=False)
class Walk:
    """One text. `allowed` [T] is the mean square up to which a row is that of its token."""

    wire: WireRows
    ranking: TokenRanking
    head: Prefix
    language: LanguagePrefix
    allowed: torch.Tensor
    batches: Batches
    certainty: float
    """Of a token whose row matches."""
    tried: int = 0
    sweeps: int = 0
    heard: int = 0
    """Positions that the language model was told of."""

    def run(self, scores_TV: torch.Tensor) -> Found:
        """From the ranking's scores of every position."""
        tokens_T = scores_TV.argmax(-1)
        rows_TH = torch.empty_like(self.wire.rows)
        squares_T = torch.full((len(tokens_T),), torch.inf, device=tokens_T.device)
        start, settled, prefix = 0, -1, self.head
        while start < len(tokens_T):
            rows_1TH, extended = prefix.extend(tokens_T[None, start:])
            rows_TH[start:] = rows_1TH[0]
            squares_T[start:] = self.wire.mean_squares(slice(start, None), rows_TH[start:, None])[:, 0]
            wrong_T = squares_T > self.allowed
            wrong_T[: settled + 1] = False
            start = int(wrong_T.int().argmax()) if bool(wrong_T.any()) else len(tokens_T)
            prefix = extended.first(start)
            if start < len(tokens_T):
                tokens_T[start] = self._search(start, prefix, int(tokens_T[start]), rows_TH, scores_TV[start])
                settled = start
        return Found(tokens_T, self._certainty(squares_T), squares_T)

    def _search(self, position: int, prefix: Prefix, token: int, rows_TH: torch.Tensor, scores_V: torch.Tensor) -> int:
        """The first candidate whose row matches; else the nearest one that was tried."""
        here, row_H = slice(position, position + 1), rows_TH[position]
        best = float(self.wire.mean_squares(here, row_H[None, None]))
        new_V = torch.zeros_like(scores_V)
        new_V[token] = -torch.inf
        expected_V = self.ranking.log_frequency
        for number, size in enumerate(self._sizes(len(scores_V))):
            if number == 1:
                expected_V = self._expected(position, rows_TH)
            moved_V = self.ranking.moved(self.wire, position, token, row_H)
            picked_K = _best_of([each_V + new_V for each_V in (moved_V, scores_V, expected_V)], size)
            if len(picked_K) == 0:
                break
            new_V[picked_K] = -torch.inf
            rows_KH = prefix.candidates(picked_K[None])[0].float()
            squares_K = self.wire.mean_squares(here, rows_KH[None])[0]
            self.tried += len(picked_K)
            nearest = int(squares_K.argmin())
            if float(squares_K[nearest]) < best:
                best, token, row_H = float(squares_K[nearest]), int(picked_K[nearest]), rows_KH[nearest]
            if best <= float(self.allowed[position]):
                break
        return token

    def _expected(self, position: int, rows_TH: torch.Tensor) -> torch.Tensor:
        """What the language model expects at this position, after rows [T, H] of the true prefix."""
        if position == 0:
            return self.ranking.log_frequency
        logits_1V, self.language = self.language.extend(rows_TH[None, self.heard : position])
        self.heard = position
        return logits_1V[0]

    def _sizes(self, num_vocabulary: int) -> Iterator[int]:
        if self.tried > self.batches.most_tokens:
            yield self.batches.sizes[0]
            return
        yield from self.batches.sizes
        if self.sweeps < self.batches.most_sweeps:
            self.sweeps += 1
            yield num_vocabulary

    def _certainty(self, squares_T: torch.Tensor) -> torch.Tensor:
        """Lower the further a row is from what is allowed."""
        return self.certainty * (self.allowed / squares_T).clamp(max=1.0)


def _best_of(scores: list[torch.Tensor], size: int) -> torch.Tensor:
    """About `size` tokens that are best by one or the other of the scores [V], each once; none that was tried."""
    num_vocabulary = len(scores[0])
    each = -(-size // len(scores)) if size < num_vocabulary else num_vocabulary
    tops = [scores_V.topk(each) for scores_V in scores]
    found: torch.Tensor = torch.unique(torch.cat([top.indices[top.values > -torch.inf] for top in tops]))
    return found
