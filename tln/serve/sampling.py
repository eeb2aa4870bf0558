"""How the next token is chosen, and how probable it was.

Sampling is the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014, section 2): the largest of logits / temperature,
plus a Gumbel variate each, is a sample of their softmax. The variates come from a generator of the text's own seed, in
the order of its tokens. So the choice depends on nothing but seed and logits, and whatever else is in the batch changes
it only where rounding may: where the two largest scores are nearer than NEAR_TIE. Those are counted.

The nucleus of top_p is the smallest set of the most probable tokens that hold top_p of the probability (Holtzman et al.
2020). Log-probabilities are those of the model, without temperature and nucleus.

V vocabulary, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEAR_TIE = 1e-4
"""Two scores nearer than this, in units of a logit, may change places when a batch rounds otherwise."""


@dataclass(frozen=True)
class Sampling:
    """How a text is sampled; temperature 0 is greedy. `num_logprobs` is None for no log-probabilities at all."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    num_logprobs: int | None = None


@dataclass(frozen=True)
class Choice:
    """A chosen token, its log-probability, the K most probable tokens, and whether the choice was close."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()
    is_near_tie: bool = False


class Sampler:
    """Chooses the tokens of one text, one after the other."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> Choice:
        """The next token of a text whose last position has `logits` [V]."""
        logits = logits.float().cpu()
        scores = self._scores(logits)
        (best, second), (token, _) = (part.tolist() for part in scores.topk(2))
        is_near = (best - second) * (self._sampling.temperature or 1.0) < NEAR_TIE
        if self._sampling.num_logprobs is None:
            return Choice(token, is_near_tie=is_near)
        logprobs = logits.log_softmax(dim=-1)
        values, tokens = logprobs.topk(self._sampling.num_logprobs)
        top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        return Choice(token, float(logprobs[token]), top, is_near)

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        """[V] of which the largest is chosen."""
        temperature, top_p = self._sampling.temperature, self._sampling.top_p
        if temperature == 0:
            return logits
        # from the largest down and in float64: nothing overflows, however low the temperature
        scaled = (logits - logits.max()).double() / temperature
        gumbel = -torch.empty_like(logits).exponential_(generator=self._generator).log()
        return _in_nucleus(scaled, top_p) + gumbel


def _in_nucleus(scaled: torch.Tensor, top_p: float) -> torch.Tensor:
    """Scaled logits [V], -inf outside the nucleus; the most probable token is always in it."""
    if top_p >= 1:
        return scaled
    probabilities, order = scaled.softmax(dim=-1).sort(descending=True, stable=True)
    is_outside = probabilities.cumsum(dim=-1) - probabilities >= top_p
    is_outside[0] = False
    return scaled.masked_fill(torch.zeros_like(is_outside).scatter(0, order, is_outside), -torch.inf)
