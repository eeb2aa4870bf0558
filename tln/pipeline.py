"""The private frame: mechanisms in their fixed order, out and back.

`protect` turns hidden rows [B, T, H] into a frame [N, R, D] that may cross; `restore` turns what came back into [B,
T, H]. An empty pipeline is the identity, so that the split with defences off equals the unsplit model. Autograd
carries gradients through both; the gradient that comes back from the untrusted node is clipped by row before it
reaches private weights.

Refused: a mechanism on a stack that cannot take it, one without those it needs, settings for one that is off, and any
frame before every mechanism is ready. There is no fallback to a weaker defence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from splitwire.errors import SettingsError, StateError
from tln.context import NO_DOCUMENT, NO_LABEL, ProtectedFrame, RowTruth, StepContext
from tln.mechanisms import MECHANISMS, Mechanism, MechanismInputs, MechanismSpec, StackName, Stage
from tln.mechanisms.base import Description
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.clip_noise import ClipNoiseSettings, clip_rows
from tln.mechanisms.decoys import DecoySettings
from tln.mechanisms.fixed_grid import FixedGrid, FixedGridSettings
from tln.mechanisms.mixup import MixupSettings
from tln.mechanisms.scale_sign import ScaleSignSettings


@dataclass(frozen=True)
class FrameSettings:
    """Which mechanisms are on, by name, and the settings of those that have some. The order of names does not matter.

    `input_gradient_clip_norm` bounds each row of the gradient that the untrusted node sends back; 0 leaves it as it is.
    """

    mechanisms: tuple[str, ...] = ()
    """Names of the mechanisms that are on: bottleneck, clip_noise, mixup, decoys, permutation,
    scale_sign, rotation, fixed_grid. Their order does not matter."""
    input_gradient_clip_norm: float = 1.0
    """Largest L2 norm of a row of the gradient that comes back; 0 for no clipping."""
    unsafe: bool = False
    """Must be true for decoys of the kind `published`."""
    bottleneck: BottleneckSettings = field(default_factory=BottleneckSettings)
    clip_noise: ClipNoiseSettings = field(default_factory=ClipNoiseSettings)
    decoys: DecoySettings = field(default_factory=DecoySettings)
    fixed_grid: FixedGridSettings = field(default_factory=FixedGridSettings)
    mixup: MixupSettings = field(default_factory=MixupSettings)
    scale_sign: ScaleSignSettings = field(default_factory=ScaleSignSettings)


RELEASED = "released"
"""Where a context's stash holds the frame as it was before any row was placed or gauged, when somebody asked for it."""


class FramePipeline(nn.Module):
    """Mechanisms sorted by stage. Lives on the trusted node.

    With `keeps_released` every protected frame is also left in the context as it was before the gauges.
    """

    def __init__(self, mechanisms: Sequence[Mechanism] = (), input_gradient_clip_norm: float = 0.0) -> None:
        super().__init__()
        ordered: list[Mechanism] = sorted(mechanisms, key=lambda mechanism: mechanism.stage)
        self.mechanisms = nn.ModuleList(ordered)
        self.input_gradient_clip_norm = input_gradient_clip_norm
        self.keeps_released = False

    @property
    def is_ready(self) -> bool:
        """Whether every mechanism can run."""
        return all(mechanism.is_ready for mechanism in self._ordered())

    def protect(self, hidden_BTH: torch.Tensor, context: StepContext) -> ProtectedFrame:
        """The frame that may cross, and the truth about its rows when the context has tokens.

        StateError if not ready.
        """
        self._refuse_unready(context)
        frame = ProtectedFrame(hidden_BTH, truth_of(context))
        for mechanism in self._ordered():
            frame = mechanism.protect(frame, context)
            if self.keeps_released and mechanism.stage <= Stage.RESEND:
                # a view of its own, so that the clip below is for what the untrusted node sends back alone
                context.stash[RELEASED] = frame
                frame = ProtectedFrame(frame.rows.view_as(frame.rows), frame.truth)
        clip = self.input_gradient_clip_norm
        if clip and len(self.mechanisms) and frame.rows.requires_grad:
            frame.rows.register_hook(lambda gradient: clip_rows(gradient, clip))  # type: ignore[no-untyped-call]
        return frame

    def restore(self, returned: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Hidden rows [B, T, H] from what the untrusted node returned for this context's frame."""
        for mechanism in reversed(self._ordered()):
            returned = mechanism.restore(returned, context)
        return returned

    @torch.no_grad()
    def prime(self, hidden_BTH: torch.Tensor, context: StepContext) -> None:
        """Gives rows that are not sent to the mechanisms that are not ready, each as it would see them in a frame."""
        frame = ProtectedFrame(hidden_BTH, truth_of(context))
        for mechanism in self._ordered():
            if not mechanism.is_ready:
                mechanism.absorb(frame)
                return
            frame = mechanism.protect(frame, context)

    def local(self) -> FramePipeline:
        """The same mechanisms without decoys and gauges: what one row goes through. For calibration on public text."""
        stages = (Stage.ENCODE, Stage.CLIP, Stage.NOISE)
        return FramePipeline([mechanism for mechanism in self._ordered() if mechanism.stage in stages])

    @property
    def grid_scale(self) -> float:
        """The step of the grid that int8 rows are on when they cross; 0 without fixed_grid."""
        return next((mechanism.scale for mechanism in self.mechanisms if isinstance(mechanism, FixedGrid)), 0.0)

    def describe(self) -> dict[str, Description]:
        """The effective mechanisms and their parameters, in the order in which they act."""
        return {mechanism.name: mechanism.describe() for mechanism in self._ordered()}

    def _ordered(self) -> list[Mechanism]:
        return [mechanism for mechanism in self.mechanisms if isinstance(mechanism, Mechanism)]

    def _refuse_unready(self, context: StepContext) -> None:
        for mechanism in self._ordered():
            if not mechanism.is_ready:
                raise StateError(
                    f"step {context.step}: mechanism {mechanism.name} is not ready",
                    remedy="prime the pipeline until it is ready; no frame goes out under a weaker defence",
                )


def build_pipeline(settings: FrameSettings, inputs: MechanismInputs) -> FramePipeline:
    """The pipeline that the settings name. SettingsError as in `check_frame`."""
    check_frame(settings, inputs.stack)
    mechanisms = [
        mechanism
        for name in MECHANISMS
        if name in settings.mechanisms
        for mechanism in MECHANISMS[name].build(getattr(settings, name, None), inputs)
    ]
    return FramePipeline(mechanisms, settings.input_gradient_clip_norm)


def check_frame(settings: FrameSettings, stack: StackName) -> None:
    """SettingsError for what this stack refuses, for a mechanism without those it needs, and for idle settings."""
    names = settings.mechanisms
    for name in names:
        if name not in MECHANISMS or names.count(name) > 1:
            raise SettingsError(
                f"frame.mechanisms has {name!r} {'twice' if name in MECHANISMS else 'which is unknown'}",
                remedy=f"use each of {', '.join(MECHANISMS)} at most once",
            )
        _check_mechanism(MECHANISMS[name], settings, stack)
    if stack == "gram" and "bottleneck" not in names:
        raise SettingsError("the gram stack needs the bottleneck", remedy="add 'bottleneck' to frame.mechanisms")
    if settings.input_gradient_clip_norm < 0:
        raise SettingsError(
            f"frame.input_gradient_clip_norm is {settings.input_gradient_clip_norm}", remedy="use 0 (off) or a norm"
        )
    _refuse_idle_sections(settings)
    _check_unsafe(settings)


def _check_mechanism(spec: MechanismSpec, settings: FrameSettings, stack: StackName) -> None:
    if stack in spec.refusals:
        raise SettingsError(
            f"mechanism {spec.name} is refused on the {stack} stack: {spec.refusals[stack]}",
            remedy=f"take {spec.name!r} out of frame.mechanisms or choose another stack",
        )
    for needed in (*spec.needs, *spec.needs_on.get(stack, ())):
        if needed not in settings.mechanisms:
            raise SettingsError(
                f"mechanism {spec.name} protects nothing without {needed} on the {stack} stack",
                remedy=f"add {needed!r} to frame.mechanisms",
            )
    if spec.check is not None:
        spec.check(getattr(settings, spec.name, None), stack)


def _check_unsafe(settings: FrameSettings) -> None:
    is_unsafe = settings.decoys.kind == "published"
    if is_unsafe and not settings.unsafe:
        raise SettingsError(
            "frame.decoys.kind 'published' sends released rows again, which shows the decoys",
            remedy="use 'recycled', or set frame.unsafe = true for a demonstration on throw-away text",
        )
    if settings.unsafe and not is_unsafe:
        raise SettingsError(
            "frame.unsafe is set and nothing in the frame needs it",
            remedy="remove frame.unsafe, or use frame.decoys.kind = 'published'",
        )


def _refuse_idle_sections(settings: FrameSettings) -> None:
    defaults = FrameSettings()
    for section in dataclasses.fields(settings):
        configured = getattr(settings, section.name)
        idle = section.name in MECHANISMS and section.name not in settings.mechanisms
        if idle and configured != getattr(defaults, section.name):
            raise SettingsError(
                f"frame.{section.name} is configured but {section.name} is not in frame.mechanisms",
                remedy=f"add {section.name!r} to frame.mechanisms, or remove the section",
            )


def truth_of(context: StepContext) -> RowTruth | None:
    """The truth about unprotected rows [B, T] of a context that has tokens; padding is not real."""
    if context.tokens is None:
        return None
    tokens = context.tokens.cpu()
    num, length = tokens.shape
    labels = torch.full_like(tokens, NO_LABEL) if context.labels is None else context.labels.cpu()
    documents = torch.full((num,), NO_DOCUMENT) if context.documents is None else context.documents.cpu()
    return RowTruth(
        real=_real_rows(context, num, length),
        order=_orders(context, num, length),
        token=tokens,
        label=labels,
        document=documents.unsqueeze(1).expand(num, length).clone(),
    )


def _orders(context: StepContext, num: int, length: int) -> torch.Tensor:
    if context.positions is None:
        return torch.arange(length).expand(num, length).clone()
    return context.positions.cpu().expand(num, length).clone()


def _real_rows(context: StepContext, num: int, length: int) -> torch.Tensor:
    if not context.row_lengths:
        return torch.ones((num, length), dtype=torch.bool)
    positions, lengths = torch.arange(length), torch.tensor(context.row_lengths).unsqueeze(1)
    return positions >= length - lengths if context.padding_side == "left" else positions < lengths
