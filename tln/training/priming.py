"""Filling the decoy pools before the first step, with rows that do not cross.

Refused: a pool that the text cannot fill, which would hold the same rows again and again, and a frame the same decoy
twice; a text too small to replay blocks of.
"""

from __future__ import annotations

import torch

from splitwire.errors import SettingsError
from tln.context import StepContext
from tln.keys import RunKey
from tln.mechanisms import Mechanism
from tln.model import SplitModelForCausalLM
from tln.pipeline import FramePipeline
from tln.settings import TlnSettings
from tln.training.batches import StepBatch, check_enough, demand_of
from tln.training.calibration import local_gradient
from tln.training.losses import LossSettings
from tln.training.prepare import Texts
from tln.training.progress import Progress
from tln.training.text import TrainingText

_POOLED = ("decoys", "mixup")


def check_pools(settings: TlnSettings, texts: Texts, num_members: int) -> None:
    """SettingsError where a pool is larger than what the text has for it. `num_members` is the private blocks."""
    is_public = bool(settings.train.public_steps) and texts.public is not None
    num_blocks = len(texts.public) if is_public and texts.public is not None else num_members
    available = num_blocks * (settings.corpus.block_tokens if settings.stack.kind == "gram" else 1)
    for name in _POOLED:
        if name in settings.frame.mechanisms and getattr(settings.frame, name).pool_size > available:
            raise SettingsError(
                f"frame.{name}.pool_size is {getattr(settings.frame, name).pool_size} and the "
                f"{'public' if is_public else 'training'} text has {available} rows or sequences for it",
                remedy=f"use at most {available}, or more text",
            )


def check_replay(pipeline: FramePipeline, text: TrainingText, num_real: int) -> None:
    """SettingsError where the frame replays more blocks beside `num_real` of a step than the text has."""
    demand = demand_of(pipeline, num_real)
    if demand.num_replayed:
        check_enough(text.members, demand.num_replayed, num_real // demand.num_groups)


def fill_pools(
    model: SplitModelForCausalLM,
    text: TrainingText,
    loss: LossSettings,
    batch_blocks: int,
    run_key: RunKey,
    progress: Progress,
) -> None:
    """Gives rows of the text to the pipeline until every mechanism is ready. Nothing crosses."""
    pipeline, priming = model.pipeline, 0
    batches = text.orders(batch_blocks, run_key, "prime")
    if not pipeline.is_ready:
        progress.begin("decoy pool", 0)
    while not pipeline.is_ready:
        priming += 1
        batch = StepBatch(next(batches))
        context = text.context(batch, step=0)
        context.priming = priming
        hidden = text.hidden_rows(model.head, batch.numbers).detach()
        pipeline.prime(hidden, context)
        _fill_gradients(model, text, loss, batch, hidden, priming)
        progress.advance(len(batch.numbers))


def _fill_gradients(
    model: SplitModelForCausalLM,
    text: TrainingText,
    loss: LossSettings,
    batch: StepBatch,
    hidden: torch.Tensor,
    priming: int,
) -> None:
    """Gives gradients of these blocks, computed here alone, to what puts them in place of those of decoys."""
    waiting = [part for part in model.pipeline.modules() if isinstance(part, Mechanism) and part.needs_gradients]
    if not waiting:
        return
    is_latent = "bottleneck" in model.pipeline.describe()
    gradient = local_gradient(
        model.tail,
        model.pipeline.local() if is_latent else FramePipeline(),
        hidden,
        text.target_rows(batch.numbers, hidden.device),
        text.blocks.labels[batch.numbers],
        loss,
        StepContext(0, priming=priming),
        is_latent=is_latent,
    )
    for part in waiting:
        part.absorb_gradient(gradient)
