"""The private frame for any shape: what goes out comes back, and the truth names every wire row."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tln.context import StepContext
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.clip_noise import ClipNoiseSettings
from tln.mechanisms.decoys import DecoySettings
from tln.pipeline import FramePipeline, FrameSettings, build_pipeline

HIDDEN = 6
QUIET = ClipNoiseSettings(clip_norm=1e4, noise_multiplier=1e-13)


def _context(step: int, num: int, length: int, mode: str = "evaluate") -> StepContext:
    tokens = 1000 * torch.arange(num).unsqueeze(1) + torch.arange(length)
    return StepContext(step, mode=mode, tokens=tokens, labels=tokens + 1, documents=torch.arange(num))  # type: ignore[arg-type]


def _hidden(context: StepContext) -> torch.Tensor:
    """Rows that carry their token in coordinate 0, so that a wire row can be recognised."""
    assert context.tokens is not None
    rows = torch.ones(*context.tokens.shape, HIDDEN)
    rows[..., 0] = context.tokens
    return rows


def _pipeline(settings: FrameSettings, stack: str, length: int, secret: bytes) -> FramePipeline:
    keys = FrameKeys(RunKey(secret), "property")
    inputs = MechanismInputs(stack, HIDDEN, length, keys, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    pipeline = build_pipeline(settings, inputs)
    while not pipeline.is_ready:
        context = _context(0, 3, length)
        pipeline.prime(_hidden(context), context)
    return pipeline


@settings(deadline=None, max_examples=40)
@given(
    num=st.integers(1, 5), length=st.integers(1, 6), count=st.integers(1, 7), secret=st.binary(min_size=32, max_size=32)
)
def test_decoy_sequences_come_off_exactly(num: int, length: int, count: int, secret: bytes) -> None:
    """Real sequences return in their order and place; each wire row is what the truth says it is."""
    chosen = FrameSettings(
        mechanisms=("clip_noise", "decoys"), clip_noise=QUIET, decoys=DecoySettings(count=count, pool_size=2 * count)
    )
    pipeline, context = _pipeline(chosen, "transformer", length, secret), _context(1, num, length)
    hidden = _hidden(context)
    frame = pipeline.protect(hidden, context)
    assert frame.rows.shape == (num + count, length, HIDDEN)
    assert frame.truth is not None
    assert torch.equal(frame.rows[..., 0].round().long(), frame.truth.token)
    assert int(frame.truth.real.sum()) == num * length
    assert torch.allclose(pipeline.restore(frame.rows, context), hidden, atol=1e-4)


@settings(deadline=None, max_examples=40)
@given(
    num=st.integers(1, 4), block=st.integers(1, 6), count=st.integers(1, 9), secret=st.binary(min_size=32, max_size=32)
)
def test_latent_frames_keep_their_truth_under_all_gauges(num: int, block: int, count: int, secret: bytes) -> None:
    """Rotation keeps inner products, so equal latent rows have equal norms: truth and rows stay together."""
    chosen = FrameSettings(
        mechanisms=("bottleneck", "clip_noise", "decoys", "permutation", "rotation"),
        bottleneck=BottleneckSettings(width=4),
        clip_noise=QUIET,
        decoys=DecoySettings(count=count, pool_size=2 * (count + block)),
    )
    pipeline = _pipeline(chosen, "gram", block, secret)
    for length in range(1, block + 1):
        context = _context(length, num, length)
        hidden = _hidden(context)
        frame = pipeline.protect(hidden, context)
        assert frame.truth is not None
        assert frame.rows.shape[1] == block + count
        assert frame.truth.real.sum(dim=1).tolist() == [length] * num
        latents = pipeline.mechanisms[0].encoder(hidden)  # type: ignore[union-attr, operator]
        for index in range(num):
            real = frame.truth.real[index]
            places = frame.truth.order[index][real]
            expected = latents[index].norm(dim=-1)[places]
            assert torch.allclose(frame.rows[index][real].norm(dim=-1), expected, atol=1e-4)
        assert pipeline.restore(frame.rows, context).shape == hidden.shape
