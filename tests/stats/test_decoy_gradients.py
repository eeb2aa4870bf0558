"""What a row's gradient norm tells about the partition under each gradient policy, by the auditor's own classifier.

A frame has 16 real and 32 decoy rows of width 16; 60 steps of 8 frames are trained through the gram surrogate, whose
weights and the encoder's change meanwhile. The classifier fits on the first half of the frames and is scored on the
second: 240 frames, 11520 rows, standard error of an AUC about .006. Keys and seeds are fixed.

`raw` readings are taken with next to no noise, so they show what noise alone would have to hide.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from auditor.attacks.row_norm import RowNorm
from auditor.progress import silent
from auditor.views.units import UnitView
from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2
from tln.context import StepContext
from tln.gradient_policy import GradientSettings, PolicyName, build_gradient_policy, decoy_loss
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.decoys import DecoySettings
from tln.mechanisms.matched_gradient import MatchedGradient
from tln.pipeline import FramePipeline, FrameSettings, build_pipeline
from tln.training.batches import demand_of, make_batch
from tln.training.calibration import local_gradient
from tln.training.losses import LossSettings, distillation_loss

pytestmark = pytest.mark.stats

NUM_STEPS, FRAMES, BLOCK, COUNT, HIDDEN, WIDTH, NUM_BLOCKS = 60, 8, 16, 32, 48, 16, 400
LOSS = LossSettings(cross_entropy=0.0)
FRAME = FrameSettings(
    mechanisms=("bottleneck", "clip_noise", "decoys", "permutation", "rotation"),
    bottleneck=BottleneckSettings(width=WIDTH),
    decoys=DecoySettings(count=COUNT, pool_size=1024),
)
QUIET, NOISY = 1e-9, 0.35


class _Text:
    """Blocks whose scale differs, as that of real text does, and what the delegated layers would make of them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        scale = torch.rand(NUM_BLOCKS, 1, 1, generator=generator) * 3 + 0.5
        self.hidden = torch.randn(NUM_BLOCKS, BLOCK, HIDDEN, generator=generator) * scale
        self.targets = self.hidden + torch.tanh(self.hidden @ torch.randn(HIDDEN, HIDDEN, generator=generator) / 7)
        self.members = torch.arange(NUM_BLOCKS)


def _inputs(policy: GradientSettings, run_key: RunKey) -> MechanismInputs:
    generator = torch.Generator().manual_seed(4)
    return MechanismInputs("gram", HIDDEN, BLOCK, FrameKeys(run_key, "stats"), generator, decoy_loss=decoy_loss(policy))


def _prime(pipeline: FramePipeline, text: _Text) -> None:
    priming = 0
    while not pipeline.is_ready:
        priming += 1
        chosen = torch.arange(FRAMES) + FRAMES * (priming % (NUM_BLOCKS // FRAMES))
        pipeline.prime(text.hidden[chosen], StepContext(0, mode="train", priming=priming))
        for part in pipeline.mechanisms:
            if isinstance(part, MatchedGradient):
                part.absorb_gradient(_local_gradient(pipeline, text, chosen, priming))


def _local_gradient(pipeline: FramePipeline, text: _Text, chosen: torch.Tensor, priming: int) -> torch.Tensor:
    tail: Any = None  # without cross-entropy it does not run
    return local_gradient(
        tail,
        pipeline.local(),
        text.hidden[chosen],
        text.targets[chosen],
        torch.zeros(FRAMES, BLOCK),
        LOSS,
        StepContext(0, priming=priming),
        is_latent=True,
    )


@cache
def _run(policy_name: PolicyName, noise_multiplier: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient rows of all frames as they cross, norms [frames, rows], and which are real."""
    settings = GradientSettings(
        policy_name, policy_name == "open", clip_norm=_clip(noise_multiplier), noise_multiplier=noise_multiplier
    )
    run_key, text = RunKey(bytes(range(32))), _Text()
    inputs = _inputs(settings, run_key)
    pipeline, policy = build_pipeline(FRAME, inputs), build_gradient_policy(settings, inputs.keys)
    gram = stack_pb2.GramSettings(num_experts=8, num_layers=2, radial=True)
    network = GramNetwork(gram, torch.Generator().manual_seed(5))
    optimizer = torch.optim.AdamW([*pipeline.parameters(), *network.parameters()], lr=1e-3)
    _prime(pipeline, text)
    norms, real = [], []
    for step in range(1, NUM_STEPS + 1):
        start = step * FRAMES % (NUM_BLOCKS - FRAMES)
        batch = make_batch(
            demand_of(pipeline, FRAMES), torch.arange(start, start + FRAMES), text.members, BLOCK, run_key, step
        )
        tokens = torch.zeros(len(batch.numbers), BLOCK, dtype=torch.int64)
        context = StepContext(step, mode="train", tokens=tokens, num_replayed=batch.num_replayed)
        frame = pipeline.protect(text.hidden[batch.numbers], context)
        returned = network(frame.rows)
        received = returned.detach().requires_grad_()
        loss = distillation_loss(pipeline.restore(received, context), text.targets[batch.numbers], LOSS)
        loss.backward()  # type: ignore[no-untyped-call]
        assert received.grad is not None
        assert frame.truth is not None
        released = policy(received.grad, context)
        returned.backward(released)
        optimizer.step()
        optimizer.zero_grad()
        norms.append(released.norm(dim=-1))
        real.append(frame.truth.real)
    return torch.cat(norms), torch.cat(real)


def _clip(noise_multiplier: float) -> float:
    """Far above every norm without noise; with noise the median norm of real rows, as the calibration would have it."""
    if noise_multiplier == QUIET:
        return 1e3
    norms, real = _run("open", QUIET)
    return norms[real].median().item()


def _readings(policy: PolicyName, noise_multiplier: float) -> dict[str, np.ndarray]:
    """The AUC inside each frame of the second half [frames], for every reading of the classifier."""
    norms, real = _run(policy, noise_multiplier)
    num, size = norms.shape
    half = num // 2
    truth = real.flatten().numpy()
    view = UnitView(
        family="gradient_only",
        norm=norms.flatten().double().numpy(),
        group=np.repeat(np.arange(num), size),
        train_units=np.arange(half * size),
        train_real=truth[: half * size],
        seed=0,
    )
    return {
        score.name: np.array(
            [
                roc_auc_score(truth[rows], score.scores[rows])
                for rows in (slice(frame * size, frame * size + size) for frame in range(half, num))
            ]
        )
        for score in RowNorm().run(view, None, silent)
    }


def test_an_open_gradient_names_every_decoy() -> None:
    """The positive control: exact zeros are the decoys, and the classifier reads every frame without a mistake."""
    norms, real = _run("open", QUIET)
    assert torch.equal(norms == 0, ~real)
    assert all(frames.min() == 1.0 for frames in _readings("open", QUIET).values())


def test_noise_alone_does_not_hide_decoys_without_loss() -> None:
    """The published mitigation over many frames: far above chance, so this instrument sees what is left."""
    assert max(frames.mean() for frames in _readings("clip_noise", NOISY).values()) > 0.6


@pytest.mark.parametrize("noise_multiplier", [QUIET, NOISY], ids=["raw", "noised"])
@pytest.mark.parametrize("policy", ["matched", "replay"])
def test_decoys_that_bear_loss_cannot_be_told_by_norm(policy: PolicyName, noise_multiplier: float) -> None:
    """Every reading within three standard errors over frames of .50, each at most .025, with and without noise."""
    for name, frames in _readings(policy, noise_multiplier).items():
        error = frames.std(ddof=1) / np.sqrt(len(frames))
        assert error < 0.025, name
        assert abs(frames.mean() - 0.5) < 3 * error, name
