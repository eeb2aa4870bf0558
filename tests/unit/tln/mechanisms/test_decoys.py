"""Decoys: never a frame with fewer, never a released row, never a gradient, and nothing that names them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from splitwire.errors import SettingsError, StateError
from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms import MechanismInputs
from tln.mechanisms.decoys import SPEC, DecoyRows, DecoySequences, DecoySettings
from tln.pipeline import truth_of

MakeContext = Callable[..., StepContext]


def _frame(rows: torch.Tensor, context: StepContext) -> ProtectedFrame:
    return ProtectedFrame(rows, truth_of(context))


def _filled_rows(keys: FrameKeys, step_context: MakeContext) -> DecoyRows:
    decoys = DecoyRows(DecoySettings(count=6, pool_size=40), block_tokens=4, keys=keys)
    decoys.absorb(_frame(torch.randn(10, 4, 8), step_context(0, 10, 4)))
    return decoys


def _filled_sequences(keys: FrameKeys, step_context: MakeContext) -> DecoySequences:
    decoys = DecoySequences(DecoySettings(count=3, pool_size=8), keys=keys)
    decoys.absorb(_frame(torch.randn(8, 4, 8), step_context(0, 8, 4)))
    return decoys


def test_no_frame_before_the_pool_is_full(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """The first frames of a run are as hidden as the later ones."""
    decoys = DecoyRows(DecoySettings(count=6, pool_size=40), block_tokens=4, keys=frame_keys)
    decoys.absorb(_frame(torch.randn(9, 4, 8), step_context(0, 9, 4)))
    assert not decoys.is_ready
    with pytest.raises(StateError, match="36 of 40"):
        decoys.protect(_frame(torch.randn(1, 4, 8), step_context(1, 1, 4)), step_context(1, 1, 4))


@pytest.mark.parametrize("length", [1, 3, 4])
def test_every_frame_has_the_same_number_of_rows(frame_keys: FrameKeys, step_context: MakeContext, length: int) -> None:
    """A shorter prefix gets more decoys, so the row count tells nothing; restore gives back the real rows."""
    decoys, context = _filled_rows(frame_keys, step_context), step_context(1, 2, length, "evaluate")
    rows = torch.randn(2, length, 8)
    frame = decoys.protect(_frame(rows, context), context)
    assert frame.rows.shape == (2, 10, 8)
    assert frame.truth is not None
    assert frame.truth.real.sum(dim=1).tolist() == [length, length]
    assert torch.equal(decoys.restore(frame.rows, context), rows)


def test_decoys_bring_their_own_truth(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """A decoy row's token, label and document are those of the row it once was."""
    decoys, context = _filled_rows(frame_keys, step_context), step_context(1, 2, 4)
    truth = decoys.protect(_frame(torch.randn(2, 4, 8), context), context).truth
    assert truth is not None
    fake = ~truth.real
    assert torch.equal(truth.token[fake], 100 * truth.document[fake] + truth.order[fake])
    assert torch.equal(truth.label[fake], truth.token[fake] + 1)


def test_only_training_feeds_the_pool(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """Held-out rows are never sent again as decoys."""
    decoys = _filled_rows(frame_keys, step_context)
    rows = torch.full((1, 4, 8), 5.0)
    evaluation, training = step_context(1, 1, 4, "evaluate"), step_context(2, 1, 4)
    decoys.protect(_frame(rows, evaluation), evaluation)
    assert not (decoys.pool.take(torch.arange(40))[0] == 5.0).any()
    decoys.protect(_frame(rows, training), training)
    assert (decoys.pool.take(torch.arange(40))[0] == 5.0).all(dim=-1).sum() == 4


def test_decoy_rows_bear_no_gradient(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """With an open gradient the untrusted node sees exact zeros: that is what the audit must find."""
    decoys, context = _filled_rows(frame_keys, step_context), step_context(1, 2, 4)
    returned = decoys.protect(_frame(torch.randn(2, 4, 8), context), context).rows.clone().requires_grad_()
    decoys.restore(returned, context).square().sum().backward()
    assert returned.grad is not None
    assert returned.grad[:, :4].any(dim=-1).all()
    assert not returned.grad[:, 4:].any()


def test_a_frame_too_long_is_refused(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """More real rows than a frame holds would need fewer decoys."""
    decoys, context = _filled_rows(frame_keys, step_context), step_context(1, 1, 5)
    with pytest.raises(StateError, match="5 real rows"):
        decoys.protect(_frame(torch.randn(1, 5, 8), context), context)


def test_a_batch_gets_decoy_sequences_in_secret_places(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """Real sequences stand at other places every step, whole and in order, and come back in theirs."""
    decoys = _filled_sequences(frame_keys, step_context)
    rows = torch.randn(4, 4, 8)
    places = set()
    for step in range(1, 9):
        context = step_context(step, 4, 4, "evaluate")
        frame = decoys.protect(_frame(rows, context), context)
        assert frame.rows.shape == (7, 4, 8)
        assert frame.truth is not None
        assert (frame.truth.real.all(dim=1) == frame.truth.real.any(dim=1)).all()
        places.add(tuple(frame.truth.real[:, 0].nonzero().flatten().tolist()))
        assert torch.equal(decoys.restore(frame.rows, context), rows)
    assert len(places) > 4


@pytest.mark.parametrize("change", ["cached", "padded", "length"])
def test_decoy_sequences_refuse_what_would_show_them(
    frame_keys: FrameKeys, step_context: MakeContext, change: str
) -> None:
    """A cache, padding and another length each end in an error, never in a batch without decoys."""
    decoys = _filled_sequences(frame_keys, step_context)
    context = step_context(1, 2, 3 if change == "length" else 4)
    if change == "cached":
        context.mode = "cached"
    if change == "padded":
        context.row_lengths, context.padding_side = (4, 3), "right"
    with pytest.raises(StateError, match="step 1"):
        decoys.protect(_frame(torch.randn(2, 3 if change == "length" else 4, 8), context), context)


def test_the_pool_replaces_the_oldest(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """First in, first out, also when more comes than fits."""
    decoys = _filled_sequences(frame_keys, step_context)
    decoys.absorb(ProtectedFrame(torch.arange(11.0).view(11, 1, 1).expand(11, 4, 8)))
    assert sorted(decoys.pool.take(torch.arange(8))[0][:, 0, 0].tolist()) == list(range(3, 11))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (DecoySettings(count=0), "count is 0"),
        (DecoySettings(count=48, pool_size=90), "pool_size 90"),
    ],
)
def test_unusable_settings_are_named(settings: DecoySettings, named: str) -> None:
    """The message names field and value."""
    assert SPEC.check is not None
    with pytest.raises(SettingsError, match=named):
        SPEC.check(settings, "gram")


def test_a_pool_must_fill_a_frame(mechanism_inputs: Callable[..., MechanismInputs]) -> None:
    """The shortest prefix takes nearly a whole frame of decoys."""
    with pytest.raises(SettingsError, match="frame of 134 rows"):
        SPEC.build(DecoySettings(count=6, pool_size=100), mechanism_inputs(block_tokens=128))
