"""Exact inversion in a few passes of the public head: rank the vocabulary, guess the text, check it, search.

What is sent is a deterministic function of the tokens so far, and the public head computes it for any candidate at the
cost of one token. So a ranking that is right four times in five, learned in seconds, leaves little to try. The wire's
noise is estimated from the rows themselves. Where it is far below the gap between tokens, the text is walked through
exactly; where it is not, beams weigh rows against the language model.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.beam import Beam, Width
from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.found import Found
from auditor.attacks.inversion.parts.language_prefix import LanguagePrefix
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.attacks.inversion.parts.token_ranking import RankingMoments, TokenRanking
from auditor.attacks.inversion.parts.walk import Batches, Walk
from auditor.attacks.inversion.parts.wire_distance import WireRows
from auditor.attacks.inversion.parts.wire_noise import gap_of, noise_of
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView

_PILOT_TEXTS = 8
_DEVIATIONS = 5.0  # of a mean square around its expectation, before a row counts as another token's
_SAFE_SHARE = 1 / 16  # of the smallest gap: a row within it belongs to no other token
_QUIETER = 0.25  # a text whose rows fit with less than this share of the assumed noise is read again
_RANK_NOISE = 1e-4  # of the mean square of rows: noise below it does not change the ranking


@dataclass(frozen=True)
class ExactInverter:
    """Reads prompts exactly where the wire allows it, and says how sure it is of every token."""

    public_tokens: Count = 8192
    """Tokens of public text that the ranking is learned from."""
    single_tokens: Count = 2048
    """Tokens that stand alone, for the ranking of the first position."""
    replaced_ratio: PositiveFloat = 0.5
    """Share of the public text that is replaced by random tokens, so that rare ones are seen."""
    first_batch: Count = 24
    """Candidates that are tried first where the guess is wrong; each further batch is four times larger."""
    num_batches: Count = 5
    most_candidates: Count = 20_000
    """Candidates that are tried in one text; past it a position gets the first batch alone."""
    whole_vocabulary: NonNegativeInt = 1
    """Positions of one text at which the whole vocabulary is tried when the batches did not hold the token."""
    beams: Count = 8
    """Prefixes that go on where noise leaves several tokens possible."""
    beam_candidates: Count = 48
    """Candidates at a position of a noisy text, over all prefixes."""
    lost_nats: PositiveFloat = 12.0
    """A prefix that is less likely than the best by so much is dropped."""

    name: ClassVar[str] = "exact_inverter"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "ours: ranked candidates checked through the public head (docs/design/exact-inversion.md)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; none for the one that follows."""
        began = time.perf_counter()
        progress(f"{self.name}: learning", 0, 0)
        reader = self._reader(view, settings.device)
        fit_seconds = time.perf_counter() - began

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            before = reader.head.work.tokens
            wire = WireRows.read(text.forward.to(settings.device), view.wire_dtype)
            found, noise = reader.read(wire)
            details = {"head_tokens": reader.head.work.tokens - before, "noise": math.sqrt(noise)}
            certainty = torch.cat([found.certainty, found.certainty.new_zeros(1)])
            return Guess(found.tokens, certainty=certainty, details=details)

        return recover_each(self.name, view, progress, recover, fit_seconds=fit_seconds)

    def _reader(self, view: PromptView, device: str) -> _Reader:
        head = public_head(view.model, device)
        moments = RankingMoments.fit(
            head,
            view.auxiliary,
            num_tokens=self.public_tokens,
            num_single=self.single_tokens,
            replaced_ratio=self.replaced_ratio,
            seed=view.seed,
        )
        wires = [WireRows.read(text.forward.to(device), view.wire_dtype) for text in view.texts]
        prefix = Prefix(head.head)
        noise, ranking = _estimate(moments, wires, prefix)
        share = float(torch.cat([wire.known.mean(-1) for wire in wires]).median())
        gap = gap_of(moments.pieces, ranking, prefix, view.wire_dtype, share)
        batches = Batches(
            tuple(self.first_batch * 4**number for number in range(self.num_batches)),
            self.most_candidates,
            self.whole_vocabulary,
        )
        width = Width(self.beams, self.beam_candidates, 8 * self.beam_candidates, self.lost_nats)
        return _Reader(ranking, prefix, LanguagePrefix.of(view.model, device), batches, width, noise, gap)


def _estimate(moments: RankingMoments, wires: Sequence[WireRows], head: Prefix) -> tuple[float, TokenRanking]:
    """Noise, and the ranking for it: a ranking that knows the noise guesses better, which tells the noise better."""
    longest = max(wires, key=len)
    pilots = wires[:_PILOT_TEXTS]
    noise_H = torch.zeros(longest.rows.shape[1], device=longest.rows.device)
    ranking = moments.ranking(longest, noise_H)
    noise = noise_of(pilots, [ranking.scores(wire).argmax(-1) for wire in pilots], head)
    if noise > _RANK_NOISE * float(longest.rows.square().mean()):
        ranking = moments.ranking(longest, noise_H + noise)
        noise = noise_of(pilots, [ranking.scores(wire).argmax(-1) for wire in pilots], head)
        ranking = moments.ranking(longest, noise_H + noise)
    return noise, ranking


@dataclass(eq=False)
class _Reader:
    """Reads one text after another; what it assumes of the noise only ever falls."""

    ranking: TokenRanking
    head: Prefix
    language: LanguagePrefix
    batches: Batches
    width: Width
    noise: float
    gap: float

    def read(self, wire: WireRows) -> tuple[Found, float]:
        """What is found, and the variance of the noise that was assumed."""
        scores_TV = self.ranking.scores(wire)
        found = self._search(wire, scores_TV)
        fitted = float(found.mean_squares.median())
        if fitted < _QUIETER * self.noise:
            self.noise = fitted
            found = self._search(wire, scores_TV)
        return found, self.noise

    def _search(self, wire: WireRows, scores_TV: torch.Tensor) -> Found:
        spread_T = _DEVIATIONS * (2 / wire.num_known).sqrt()
        if self.gap >= 2 * float(spread_T.max()) * self.noise:
            allowed_T = (self.noise * (1 + spread_T)).clamp(min=_SAFE_SHARE * self.gap) + wire.floor
            certainty = float(torch.special.ndtr(self._margin(wire)))
            return Walk(wire, self.ranking, self.head, self.language, allowed_T, self.batches, certainty).run(scores_TV)
        unlike = 2 * float(wire.rows[1:].var(0).mean()) if len(wire) > 2 else math.inf
        return Beam(wire, self.head, self.language, self.noise + wire.floor, unlike, self.width).run(scores_TV)

    def _margin(self, wire: WireRows) -> torch.Tensor:
        """Half the smallest gap, in standard deviations of the noise along it."""
        return (self.gap * wire.num_known.min() / max(self.noise, 1e-30)).sqrt() / 2
