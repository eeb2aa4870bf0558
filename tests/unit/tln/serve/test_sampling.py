"""Tokens are drawn from the distribution that the request describes, by its seed alone."""

from __future__ import annotations

import pytest
import torch

from tln.serve.sampling import NEAR_TIE, Sampler, Sampling

LOGITS = torch.tensor([0.0, 1.0, 2.0, 3.0, -torch.inf])


def draws(sampling: Sampling, count: int) -> torch.Tensor:
    """How often each token was chosen, as shares."""
    sampler = Sampler(sampling)
    tokens = torch.tensor([sampler.choose(LOGITS).token for _ in range(count)])
    return torch.bincount(tokens, minlength=len(LOGITS)) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature: float) -> None:
    """Within 5 standard errors of 4,000 draws; fails for a wrong temperature in all but a millionth of seeds."""
    expected = (LOGITS / temperature).softmax(-1)
    error = (expected * (1 - expected) / 4000).sqrt()
    assert bool(((draws(Sampling(temperature, seed=3), 4000) - expected).abs() <= 5 * error + 1e-9).all())


def test_the_nucleus_is_the_smallest_set_that_holds_its_share() -> None:
    """Probabilities are .644, .237, .087, .032: .7 takes two tokens, .6 one."""
    assert draws(Sampling(top_p=0.7), 400).gt(0).tolist() == [False, False, True, True, False]
    assert draws(Sampling(top_p=0.6), 100).gt(0).tolist() == [False, False, False, True, False]


def test_the_seed_decides() -> None:
    """The same again, and another for another seed; greedy knows no seed."""
    sequences = {seed: [Sampler(Sampling(seed=seed)).choose(LOGITS).token for _ in range(1)] for seed in range(40)}
    assert len({tuple(sequence) for sequence in sequences.values()}) > 1
    samplers = [Sampler(Sampling(seed=5)) for _ in range(2)]
    first, second = ([sampler.choose(LOGITS).token for _ in range(30)] for sampler in samplers)
    assert first == second
    assert Sampler(Sampling(temperature=0, seed=1)).choose(LOGITS).token == 3


def test_log_probabilities_are_the_models_own() -> None:
    """Without temperature and nucleus, and the most probable first."""
    choice = Sampler(Sampling(0.7, 0.5, num_logprobs=2)).choose(LOGITS)
    expected = LOGITS.log_softmax(-1)
    assert choice.logprob == pytest.approx(float(expected[choice.token]))
    assert choice.top == ((3, pytest.approx(float(expected[3]))), (2, pytest.approx(float(expected[2]))))
    assert Sampler(Sampling()).choose(LOGITS).top == ()


def test_near_ties_are_noticed() -> None:
    """In units of a logit, whatever the temperature."""
    for margin, is_near in ((NEAR_TIE / 2, True), (NEAR_TIE * 4, False)):
        logits = torch.tensor([1.0, 1.0 + margin, -5.0])
        assert Sampler(Sampling(temperature=0)).choose(logits).is_near_tie is is_near


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 5e-324])
def test_a_temperature_of_almost_nothing_is_greedy(temperature: float) -> None:
    """Whatever overflows on the way to it."""
    logits = torch.tensor([5.0, 1.0, 9.0, 8.9, -3.0])
    choices = [
        Sampler(Sampling(temperature, top_p=top_p, seed=seed)).choose(logits) for top_p in (0.5, 1) for seed in range(8)
    ]
    assert {(choice.token, choice.is_near_tie) for choice in choices} == {(2, False)}
