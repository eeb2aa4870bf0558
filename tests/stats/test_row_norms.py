"""Forward row norms tell nothing about which rows are decoys, and the instrument that says so can say otherwise.

300 frames of 32 real and 48 decoy rows; the AUC of a row's norm has a standard error of about .004 here, the test
allows .02. The encoder is trained while the frames are made, so that pool rows come from an older one. Keys and seeds
are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from tln.context import StepContext
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs
from tln.mechanisms.decoys import DecoySettings
from tln.pipeline import FramePipeline, FrameSettings, build_pipeline

pytestmark = pytest.mark.stats

NUM_STEPS, FRAMES, BLOCK, HIDDEN = 30, 10, 32, 72
LATENT = FrameSettings(
    mechanisms=("bottleneck", "clip_noise", "decoys", "permutation", "rotation"),
    decoys=DecoySettings(count=48, pool_size=2048),
)
REENCODED = replace(LATENT, decoys=DecoySettings(count=48, kind="reencoded", pool_size=2048))
WIDE = FrameSettings(mechanisms=("clip_noise", "decoys"), decoys=DecoySettings(count=10, pool_size=40))


def _context(step: int) -> StepContext:
    tokens = torch.zeros(FRAMES, BLOCK, dtype=torch.int64)
    return StepContext(step, mode="train", tokens=tokens)


def _norms(
    settings: FrameSettings, released: Callable[[FramePipeline, torch.Tensor], None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norms of all rows of a run, and which are real. `released` sees each frame as it crosses."""
    generator = torch.Generator().manual_seed(3)
    inputs = MechanismInputs(
        "gram" if "bottleneck" in settings.mechanisms else "transformer",
        HIDDEN,
        BLOCK,
        FrameKeys(RunKey(bytes(range(32))), "stats"),
        torch.Generator().manual_seed(4),
    )
    pipeline = build_pipeline(settings, inputs)
    optimizer = torch.optim.AdamW(list(pipeline.parameters()) or [torch.zeros(1, requires_grad=True)], lr=1e-3)
    norms, real = [], []
    for step in range(1, NUM_STEPS + 1):
        while not pipeline.is_ready:
            pipeline.prime(_hidden(generator), _context(0))
        hidden = _hidden(generator).requires_grad_()
        frame = pipeline.protect(hidden, _context(step))
        assert frame.truth is not None
        released(pipeline, frame.rows.detach())
        norms.append(frame.rows.detach().norm(dim=-1).flatten())
        real.append(frame.truth.real.flatten())
        frame.rows.square().sum().backward()
        optimizer.step()
    return torch.cat(norms), torch.cat(real)


def _hidden(generator: torch.Generator) -> torch.Tensor:
    """Rows whose scale differs from block to block, as those of real text do."""
    scale = torch.rand(FRAMES, 1, 1, generator=generator) * 3 + 0.5
    return torch.randn(FRAMES, BLOCK, HIDDEN, generator=generator) * scale


@pytest.mark.parametrize("settings", [LATENT, REENCODED, WIDE], ids=["latent", "reencoded", "wide"])
def test_row_norms_do_not_tell_real_from_decoy(settings: FrameSettings) -> None:
    """AUC .50 within .02."""
    norms, real = _norms(settings, lambda _pipeline, _rows: None)
    assert abs(roc_auc_score(real.numpy(), norms.numpy()) - 0.5) < 0.02


def test_a_pool_of_released_rows_is_found_at_once() -> None:
    """The published defect, noised again, as positive control: the same AUC is far from .50, so the test can fail."""

    def spoil(pipeline: FramePipeline, rows: torch.Tensor) -> None:
        pool = next(mechanism.pool for mechanism in pipeline.mechanisms if mechanism.name == "decoys")
        pool.add(rows.flatten(0, 1), None)

    norms, real = _norms(LATENT, spoil)
    assert roc_auc_score((~real).numpy(), norms.numpy()) > 0.8
