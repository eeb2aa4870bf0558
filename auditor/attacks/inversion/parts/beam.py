"""Inversion where noise leaves several tokens possible: beams of prefixes, weighed by rows and by the language model.

The weight of a text is its probability: independent Gaussian noise on every entry of every row, times what the public
model gives the text as language. Rows after a position speak of it as well, so several prefixes go on until one of them
is clearly better; how sure the search is of a token is the weight of the prefixes that agree on it.

Shapes: B prefixes, K candidates of each, T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.found import Found
from auditor.attacks.inversion.parts.language_prefix import LanguagePrefix, with_any
from auditor.attacks.inversion.parts.wire_distance import WireRows


@dataclass(frozen=True)
class Width:
    """How many prefixes are kept, and how many candidates are tried at a position."""

    num_prefixes: int
    num_candidates: int
    num_second: int
    """Candidates at a position where none of the first explains the row."""
    lost_nats: float
    """A prefix that is less likely than the best by so much is dropped."""


@dataclass(eq=False)
class Beam:
    """One text. `noise` [T] is the variance of an entry, `unlike` the mean square of rows that are not alike."""

    wire: WireRows
    head: Prefix
    language: LanguagePrefix
    noise: torch.Tensor
    unlike: float
    width: Width

    def run(self, scores_TV: torch.Tensor) -> Found:
        """From the ranking's scores of every position."""
        num_vocabulary = scores_TV.shape[1]
        log_next_BV = scores_TV.new_full((1, num_vocabulary), -math.log(num_vocabulary))
        totals_B, squares_BT = scores_TV.new_zeros(1), scores_TV.new_empty(1, 0)
        tokens_BT = torch.empty(1, 0, dtype=torch.int64, device=scores_TV.device)
        head, language = self.head, self.language
        for position, scores_V in enumerate(scores_TV):
            picked_BK, squares_BK = self._try(position, head, scores_V, log_next_BV)
            known = float(self.wire.num_known[position])
            fits_BK = log_next_BV.gather(1, picked_BK) - squares_BK * known / (2 * self.noise[position])
            flat = (totals_B[:, None] + fits_BK).flatten()
            totals_B, order_B = flat.topk(min(self.width.num_prefixes, len(flat)))
            kept_B = order_B[totals_B >= totals_B[0] - self.width.lost_nats]
            totals_B, owners_B = totals_B[: len(kept_B)], kept_B // picked_BK.shape[1]
            new_B = picked_BK.flatten()[kept_B]
            tokens_BT = torch.cat([tokens_BT[owners_B], new_B[:, None]], dim=1)
            squares_BT = torch.cat([squares_BT[owners_B], squares_BK.flatten()[kept_B][:, None]], dim=1)
            rows_B1H, head = head.pick(owners_B).extend(new_B[:, None])
            logits_BV, language = language.pick(owners_B).extend(rows_B1H)
            log_next_BV = with_any(logits_BV.log_softmax(-1))
        return self._found(tokens_BT, squares_BT, totals_B)

    def _try(
        self, position: int, head: Prefix, scores_V: torch.Tensor, log_next_BV: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates [B, K] and the mean squares [B, K] of their rows: a third is what the language model expects."""
        num_prefixes, num_vocabulary = log_next_BV.shape
        for num_candidates in (self.width.num_candidates, self.width.num_second):
            each = min(num_vocabulary, max(num_candidates // 4, num_candidates // num_prefixes))
            ranked_BK = (scores_V + log_next_BV).topk(each - each // 3).indices
            others_BV = log_next_BV.scatter(1, ranked_BK, -torch.inf)
            picked_BK = torch.cat([ranked_BK, others_BV.topk(each // 3).indices], dim=1)
            rows_BKH = head.candidates(picked_BK).float()
            squares_BK = self.wire.mean_squares(slice(position, position + 1), rows_BKH.flatten(0, 1)[None]).reshape(
                picked_BK.shape
            )
            spread = 1 + 5 * math.sqrt(2 / float(self.wire.num_known[position]))
            if float(squares_BK.min()) <= spread * float(self.noise[position]):
                break
        return picked_BK, squares_BK

    def _found(self, tokens_BT: torch.Tensor, squares_BT: torch.Tensor, totals_B: torch.Tensor) -> Found:
        """The best text; a row that is as far off as any row makes its token a mere guess."""
        weights_B = totals_B.softmax(0)
        agreed_T = (weights_B[:, None] * (tokens_BT == tokens_BT[:1])).sum(0)
        explained_T = (1 - squares_BT[0] / self.unlike).clamp(min=0).square()
        return Found(tokens_BT[0], agreed_T * explained_T, squares_BT[0])
