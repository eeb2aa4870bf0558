"""One step of the adversaries: they learn what is there, the encoder feels the reverse, and a resumed run goes on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from splitwire.errors import StateError
from tln.adversaries import Adversaries
from tln.adversaries.invariants import frame_invariants
from tln.context import ProtectedFrame, StepContext

NUM_TOKENS, ROW_WIDTH = 8, 6

MakeAdversaries = Callable[..., Adversaries]
MakeBatch = Callable[..., tuple[torch.Tensor, torch.Tensor]]
MakeFrame = Callable[..., ProtectedFrame]

ALL = {"heads": ("token", "property", "reconstruction"), "mine_weight": 0.1, "gram_weight": 0.5}


def _telling(labels: torch.Tensor) -> torch.Tensor:
    """Rows that hold their label: the first 6 tokens one-hot, the last two at the origin; a little noise."""
    rows = functional.one_hot(labels, NUM_TOKENS)[..., :ROW_WIDTH].float()
    return rows + 0.05 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(4))


def _learn(adversaries: Adversaries, batch: MakeBatch, frame_of: MakeFrame, *, telling: bool) -> dict[str, float]:
    losses: dict[str, float] = {}
    for step in range(1, 61):
        hidden, labels = batch(step)
        blind = torch.randn(*labels.shape, ROW_WIDTH, generator=torch.Generator().manual_seed(step))
        rows = _telling(labels) if telling else blind
        losses = adversaries.step(frame_of(rows, labels), hidden, StepContext(step)).losses
    return losses


def test_heads_learn_what_rows_tell_and_nothing_from_noise(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """Fresh rows every step, so what is learned is not memory. Chance is ln 8 for the token, 1 for the hidden row."""
    chance = math.log(NUM_TOKENS)
    telling = _learn(make_adversaries(heads=ALL["heads"], mine_weight=0.1), batch, frame_of, telling=True)
    blind = _learn(make_adversaries(heads=ALL["heads"], mine_weight=0.1), batch, frame_of, telling=False)
    assert telling["token"] < 0.5 * chance
    assert blind["token"] > 0.9 * chance
    assert telling["reconstruction"] < blind["reconstruction"] - 0.1
    assert telling["mine_nats"] > 1.0, "6 of 8 tokens are told, 1.74 nats"
    assert telling["mine_nats"] < chance + 0.1, "no row can tell more than its token"
    assert blind["mine_nats"] < 0.2


def test_the_encoder_feels_the_reversed_gradient_of_the_heads(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """Minus strength times the gradient of the mean over real labelled rows, summed over frames."""
    adversaries = make_adversaries(heads=("token",), strength=0.5)
    hidden, labels = batch(1)
    frame = frame_of(_telling(labels), labels, num_decoys=5)
    pressure = adversaries.step(frame, hidden, StepContext(1))
    rows = frame.rows.clone().requires_grad_()
    asked = torch.ones_like(labels, dtype=torch.bool)
    asked[:, -5:], asked[0, 0] = False, False
    answers = adversaries.networks["token"](rows[asked], frame_invariants(rows, with_place=False)[asked])
    loss = functional.cross_entropy(answers, adversaries._table.classes[labels[asked]])
    assert loss.item() == pytest.approx(pressure.losses["token"])
    (expected,) = torch.autograd.grad(-0.5 * len(rows) * loss, rows)
    torch.testing.assert_close(pressure.gradient, expected)


def test_pressure_reaches_the_encoder_and_its_value_does_not(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """`on` hands the gradient to the graph of the released rows, whatever made them."""
    hidden, labels = batch(1)
    encoder = torch.nn.Linear(hidden.shape[-1], ROW_WIDTH)
    rows = encoder(hidden)
    pressure = make_adversaries(**ALL).step(frame_of(rows, labels), hidden, StepContext(1))
    assert encoder.weight.grad is None, "learning touched the encoder"
    assert pressure.gradient is not None
    expected = torch.einsum("nrd,nrh->dh", pressure.gradient, hidden)
    pressure.on(rows).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(encoder.weight.grad, expected)


def test_in_the_warm_up_they_learn_and_the_encoder_feels_nothing(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """The flattening has nothing to learn and acts from the first step."""
    hidden, labels = batch(1)
    frame = frame_of(_telling(labels), labels)
    adversaries = make_adversaries(heads=("token",), warmup_steps=2)
    before = copy.deepcopy(adversaries.networks.state_dict())
    felt = [adversaries.step(frame, hidden, StepContext(step)).gradient is not None for step in (1, 2, 3)]
    assert felt == [False, False, True]
    assert not torch.equal(adversaries.networks.state_dict()["token.answer.weight"], before["token.answer.weight"])
    assert (
        make_adversaries(heads=("token",), warmup_steps=2, gram_weight=1.0).step(frame, hidden, StepContext(1)).gradient
        is not None
    )


def test_they_update_as_often_as_told(make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame) -> None:
    """AdamW counts its steps."""
    hidden, labels = batch(1)
    adversaries = make_adversaries(heads=("property",), updates=3)
    for step in (1, 2):
        adversaries.step(frame_of(_telling(labels), labels), hidden, StepContext(step))
    assert adversaries._optimizer is not None
    assert {int(state["step"]) for state in adversaries._optimizer.state.values()} == {6}


def test_a_resumed_run_goes_on_bit_for_bit(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """State taken between two steps and loaded elsewhere gives the same gradients, warm-up included."""
    whole = make_adversaries(**ALL, warmup_steps=3)
    for step in (1, 2):
        hidden, labels = batch(step)
        whole.step(frame_of(_telling(labels), labels), hidden, StepContext(step))
    resumed = make_adversaries(**ALL, warmup_steps=3)
    resumed.load_state(copy.deepcopy(whole.state()))
    for step in (3, 4, 5):
        hidden, labels = batch(step)
        frame = frame_of(_telling(labels), labels)
        first, second = whole.step(frame, hidden, StepContext(step)), resumed.step(frame, hidden, StepContext(step))
        assert first.losses == second.losses
        assert first.gradient is not None
        assert second.gradient is not None
        assert torch.equal(first.gradient, second.gradient)
    other = make_adversaries(secret=b"x" * 32, **ALL)
    name = "parameter.token.answer.weight"
    assert not torch.equal(other.state()[name], make_adversaries(**ALL).state()[name])
    assert torch.equal(make_adversaries(**ALL).state()[name], make_adversaries(**ALL).state()[name])


def test_a_frame_without_truth_is_refused(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """There is nothing to ask about; the step is named."""
    hidden, labels = batch(1)
    with pytest.raises(StateError, match="step 7"):
        make_adversaries(**ALL).step(ProtectedFrame(_telling(labels)), hidden, StepContext(7))


def test_a_gradient_that_is_not_finite_never_reaches_the_encoder(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """One such step would end the private weights."""
    hidden, labels = batch(1)
    adversaries = make_adversaries(heads=("token",))
    with torch.no_grad():
        adversaries.networks["token"].answer.weight.fill_(float("inf"))  # type: ignore[union-attr,operator]
    with pytest.raises(StateError, match=r"step 5.*not finite"):
        adversaries.step(frame_of(_telling(labels), labels), hidden, StepContext(5))
