"""Decoys: never a frame with fewer, never a released row, never a gradient, and nothing that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from splitwire.errors import SettingsError, StateError
from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms import MechanismInputs, Stage
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.decoy_spec import SPEC
from tln.mechanisms.decoys import DecoyRows, DecoySequences, DecoySettings
from tln.pipeline import FramePipeline, FrameSettings, build_pipeline, check_frame, truth_of

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
    with pytest.raises(SettingsError, match="may need 134 rows"):
        SPEC.build(DecoySettings(count=6, pool_size=100), mechanism_inputs(block_tokens=128))


FRAME = FrameSettings(
    mechanisms=("bottleneck", "clip_noise", "decoys", "permutation", "rotation"),
    bottleneck=BottleneckSettings(width=8),
)


def _pipeline(inputs: MechanismInputs, step_context: MakeContext, **values: Any) -> FramePipeline:
    settings = replace(
        FRAME, decoys=DecoySettings(count=6, pool_size=40, **values), unsafe="published" in values.values()
    )
    pipeline, generator = build_pipeline(settings, inputs), torch.Generator().manual_seed(1)
    priming = 0
    while not pipeline.is_ready:
        priming += 1
        context = step_context(0, 3, 4)
        context.priming = priming
        pipeline.prime(torch.randn(3, 4, 12, generator=generator), context)
    return pipeline


@pytest.mark.parametrize(("kind", "is_found"), [("recycled", False), ("reencoded", False), ("published", True)])
def test_only_published_decoys_are_found_again_by_their_norm(
    mechanism_inputs: Callable[..., MechanismInputs], step_context: MakeContext, kind: str, is_found: bool
) -> None:
    """Every published decoy has the exact norm of an earlier row; no other row of any kind has."""
    pipeline, seen, steps = _pipeline(mechanism_inputs(), step_context, kind=kind), torch.empty(0), 6
    generator = torch.Generator().manual_seed(2)
    for step in range(1, steps + 1):
        frame = pipeline.protect(torch.randn(3, 4, 12, generator=generator), step_context(step, 3, 4))
        norms = frame.rows.detach().double().norm(dim=-1).flatten()
        if step == steps:  # what primed the pool has left it by now
            again = ((norms.unsqueeze(1) - seen).abs() < 2e-6 * norms.unsqueeze(1)).any(dim=1)
            assert frame.truth is not None
            assert torch.equal(again, ~frame.truth.real.flatten() if is_found else torch.zeros_like(again))
        seen = torch.cat((seen, norms))


def test_primed_rows_of_published_decoys_have_noise_of_their_own(
    mechanism_inputs: Callable[..., MechanismInputs], step_context: MakeContext
) -> None:
    """Two batches primed under the same noise would give their difference away in the first frames."""
    pipeline = _pipeline(mechanism_inputs(), step_context, kind="published")
    noise: Any = pipeline.mechanisms[2]
    assert noise.name == "noise"
    rows = torch.zeros(1, 4, 8)
    first, second = (noise.protect(ProtectedFrame(rows), StepContext(0, priming=count)).rows for count in (1, 2))
    assert not torch.equal(first, second)


def test_reencoded_decoys_follow_the_encoder(
    mechanism_inputs: Callable[..., MechanismInputs], step_context: MakeContext
) -> None:
    """When the encoder changes, so do the decoys drawn by the same keys; recycled ones stay as they were."""
    changed = {}
    for kind in ("recycled", "reencoded"):
        pipeline, rows = _pipeline(mechanism_inputs(), step_context, kind=kind), []
        parts: list[Any] = list(pipeline.mechanisms)
        local = FramePipeline([part for part in parts if part.stage < Stage.NOISE])
        for _ in range(2):
            context = step_context(1, 3, 4, "evaluate")
            frame = local.protect(torch.ones(3, 4, 12), context)
            assert frame.truth is not None
            rows.append(frame.rows[~frame.truth.real].detach())
            with torch.no_grad():
                next(part for part in parts if part.name == "bottleneck").encoder[1].weight.mul_(-2)
        changed[kind] = not torch.equal(*rows)
    assert changed == {"recycled": False, "reencoded": True}


def test_rows_that_are_not_sent_are_decoys_in_every_respect(frame_keys: FrameKeys, step_context: MakeContext) -> None:
    """They come from the pool with their own truth, bear no gradient, and the frame keeps its size."""
    settings = DecoySettings(count=6, pool_size=40, min_real_rows=1)
    decoys, context = DecoyRows(settings, block_tokens=4, keys=frame_keys), step_context(1, 3, 4)
    pooled = torch.randn(10, 4, 8)
    decoys.absorb(_frame(pooled, step_context(0, 10, 4)))
    context.real_lengths = torch.tensor([1, 3, 4])
    rows = torch.randn(3, 4, 8).requires_grad_()
    frame = decoys.protect(_frame(rows, context), context)
    assert frame.truth is not None
    assert frame.rows.shape == (3, 10, 8)
    assert frame.truth.real.sum(dim=1).tolist() == [1, 3, 4]
    for number, real in enumerate((1, 3, 4)):
        assert torch.equal(frame.rows[number, :real], rows[number, :real])
        flat = pooled.flatten(0, 1)
        assert all((row == flat).all(dim=1).any() for row in frame.rows[number, real:])
        assert len({tuple(row) for row in frame.rows[number].tolist()}) == 10
    frame.rows.sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert torch.equal(rows.grad.any(dim=-1).sum(dim=1), torch.tensor([1, 3, 4]))


@pytest.mark.parametrize("stack", ["gram", "transformer"])
def test_replayed_blocks_go_out_and_come_back_in_order(
    mechanism_inputs: Callable[..., MechanismInputs], step_context: MakeContext, stack: str
) -> None:
    """Real blocks first, then the replayed ones; in the truth they are not real and keep what they are."""
    inputs = replace(mechanism_inputs(stack), decoy_loss="replay")
    (decoys,) = SPEC.build(DecoySettings(count=8, pool_size=40), inputs)
    num_replayed = 6 if stack == "gram" else 8
    decoys.absorb(_frame(torch.randn(40, 4, 8), step_context(0, 40, 4)))
    context = step_context(1, 3 + num_replayed, 4)
    context.num_replayed = num_replayed
    rows = torch.randn(3 + num_replayed, 4, 8)
    frame = decoys.protect(_frame(rows, context), context)
    assert frame.rows.shape == ((3, 12, 8) if stack == "gram" else (11, 4, 8))
    assert frame.truth is not None
    real = frame.truth.real
    assert set(frame.truth.document[real].tolist()) == {0, 1, 2}
    assert set(frame.truth.document[~real].tolist()) == set(range(3, 3 + num_replayed))
    assert torch.equal(frame.truth.token, 100 * frame.truth.document + frame.truth.order)
    assert torch.equal(decoys.restore(frame.rows, context), rows)
    assert not context.stash


@pytest.mark.parametrize("stack", ["gram", "transformer"])
def test_replay_refuses_a_training_step_without_its_blocks(
    mechanism_inputs: Callable[..., MechanismInputs], step_context: MakeContext, stack: str
) -> None:
    """Decoys of the pool in their place would bear no loss; evaluation takes them, since it has no gradient."""
    inputs = replace(mechanism_inputs(stack), decoy_loss="replay")
    (decoys,) = SPEC.build(DecoySettings(count=8, pool_size=40), inputs)
    decoys.absorb(_frame(torch.randn(40, 4, 8), step_context(0, 40, 4)))
    with pytest.raises(StateError, match="0 replayed blocks"):
        decoys.protect(_frame(torch.randn(3, 4, 8), step_context(1, 3, 4)), step_context(1, 3, 4))
    context, rows = step_context(2, 3, 4, "evaluate"), torch.randn(3, 4, 8)
    assert torch.equal(decoys.restore(decoys.protect(_frame(rows, context), context).rows, context), rows)


@pytest.mark.parametrize(
    ("values", "loss", "named"),
    [
        ({"min_real_rows": 4}, "none", "min_real_rows is 4 and a block has 4"),
        ({"min_real_rows": -1}, "none", "min_real_rows is -1"),
        ({"count": 6}, "replay", "blocks of 4"),
        ({"min_real_rows": 2}, "replay", "whole blocks"),
        ({"kind": "published"}, "replay", "re-sends nothing"),
    ],
)
def test_kinds_and_losses_that_contradict_are_refused(
    mechanism_inputs: Callable[..., MechanismInputs], values: dict[str, Any], loss: Any, named: str
) -> None:
    """Before anything is sent, with field and value."""
    settings = replace(DecoySettings(count=8, pool_size=80), **values)
    with pytest.raises(SettingsError, match=named):
        build_pipeline(
            replace(FRAME, decoys=settings, unsafe=settings.kind == "published"),
            replace(mechanism_inputs(), decoy_loss=loss),
        )


@pytest.mark.parametrize(("values", "named"), [({"kind": "reencoded"}, "no encoder"), ({"min_real_rows": 2}, "whole")])
def test_what_the_transformer_stack_cannot_do_is_refused(values: dict[str, Any], named: str) -> None:
    """With the reason."""
    assert SPEC.check is not None
    with pytest.raises(SettingsError, match=named):
        SPEC.check(DecoySettings(**values), "transformer")


@pytest.mark.parametrize(
    ("kind", "unsafe", "named"), [("published", False, "released rows again"), ("recycled", True, "unsafe is set")]
)
def test_published_decoys_need_the_flag_and_the_flag_needs_them(kind: Any, unsafe: bool, named: str) -> None:
    """The published defect is there on purpose only."""
    settings = replace(FRAME, decoys=DecoySettings(kind=kind), unsafe=unsafe)
    with pytest.raises(SettingsError, match=named):
        check_frame(settings, "gram")
