"""What a mechanism of the private frame is, and where in the frame's making it acts.

A mechanism is a pair: `protect` turns rows into what may cross, `restore` undoes it on what comes back. Both are
differentiable torch operations, so a mechanism never needs backward code of its own. What restore needs is kept in
`context.stash` under the mechanism's name. Randomness comes from the frame keys only.

The order of the stages is fixed, because it carries the guarantees: rows are clipped before they enter the decoy
pool, and noise comes after the decoys so that every row of every frame gets fresh noise. The stage RESEND, after the
noise, exists for the published defect alone.

Shapes: N frames, R rows a frame, D width of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from tln.context import ProtectedFrame, RowTruth, StepContext
from tln.keys import FrameKeys

StackName = Literal["transformer", "gram"]
DecoyLoss = Literal["none", "matched", "replay"]
"""What decoys bear: no loss at all, gradient rows drawn from those of real rows, or a loss of their own."""
Description = dict[str, int | float | str | bool]


class Stage(IntEnum):
    """When a mechanism acts on the way out; the way back is the reverse."""

    SOURCE = 5
    ENCODE = 10
    CLIP = 20
    BLEND = 25
    MIX = 30
    NOISE = 40
    RESEND = 45
    BEAR = 47
    ARRANGE = 50
    GAUGE = 60
    QUANTISE = 70


@dataclass(frozen=True)
class BatchDemand:
    """What a mechanism wants of the loop in a training step.

    `num_replayed` earlier blocks beside each of `num_groups` equal groups of real ones, and at least `min_real_rows`
    rows of each block sent, the number varied (0: all rows, always).
    """

    num_groups: int = 1
    num_replayed: int = 0
    min_real_rows: int = 0


class Mechanism(nn.Module):
    """One step of the private frame. Subclasses set `name` and `stage` and override what they do."""

    name: ClassVar[str]
    stage: Stage

    @property
    def is_ready(self) -> bool:
        """Whether the mechanism can run; false until `absorb` was given enough rows."""
        return True

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:  # noqa: ARG002 - default
        """Rows nearer to what may cross."""
        return frame

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:  # noqa: ARG002 - default
        """Undoes `protect` on returned rows [N, R, D]."""
        return rows

    def absorb(self, frame: ProtectedFrame) -> None:
        """Takes rows that will not be sent now, such as the first rows of a decoy pool."""

    @property
    def needs_gradients(self) -> bool:
        """Whether `absorb_gradient` must be called before the mechanism can run."""
        return False

    def absorb_gradient(self, gradient: torch.Tensor) -> None:
        """Takes gradient rows [N, R, D] of text, computed here, that will not be sent now."""

    def demand(self, num_real: int) -> BatchDemand | None:  # noqa: ARG002 - default
        """What a training step of `num_real` blocks must bring beside them; None for nothing."""
        return None

    def describe(self) -> Description:
        """The parameters in force, for the effective defence. Nothing secret."""
        return {}


@dataclass(frozen=True)
class MechanismInputs:
    """What a mechanism is built from besides its own settings."""

    stack: StackName
    hidden_width: int
    block_tokens: int
    keys: FrameKeys
    generator: torch.Generator
    num_views: int = 1
    """Untrusted nodes that get a share of the width each; see tln.topology.views."""
    decoy_loss: DecoyLoss = "none"


@dataclass(frozen=True)
class MechanismSpec:
    """One entry of the registry. `refusals` gives, for a stack that cannot take the mechanism, the reason."""

    name: str
    build: Callable[[Any, MechanismInputs], list[Mechanism]]
    check: Callable[[Any, StackName], None] | None = None
    needs: tuple[str, ...] = ()
    needs_on: Mapping[StackName, tuple[str, ...]] = field(default_factory=dict)
    refusals: Mapping[StackName, str] = field(default_factory=dict)


def map_truth(truth: RowTruth | None, change: Callable[[torch.Tensor], torch.Tensor]) -> RowTruth | None:
    """The truth with the same change (a gather, a selection) made to each of its tensors."""
    if truth is None:
        return None
    return RowTruth(
        change(truth.real), change(truth.order), change(truth.token), change(truth.label), change(truth.document)
    )


def join_truth(first: RowTruth, second: RowTruth, dim: int) -> RowTruth:
    """Both truths one after the other along `dim`."""
    return RowTruth(
        torch.cat((first.real, second.real), dim),
        torch.cat((first.order, second.order), dim),
        torch.cat((first.token, second.token), dim),
        torch.cat((first.label, second.label), dim),
        torch.cat((first.document, second.document), dim),
    )
