"""Clip every row to an L2 norm and add Gaussian noise to every coordinate.

Two stages with the decoys between them: clipping comes before rows enter the decoy pool, noise after decoys have
joined the frame. So a pool holds clipped rows before noise, and every row of every frame, real or decoy, gets fresh
noise; no row is ever noised twice, since a twice-noised row has a larger norm and gives itself away.

The noise is drawn from the frame keys by (session, step). Its standard deviation a coordinate is noise_multiplier times
clip_norm. It makes no differential-privacy claim: one release at .35 costs far too much for a meaningful sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from splitwire.errors import SettingsError
from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Description, Mechanism, MechanismInputs, MechanismSpec, StackName, Stage

_SMALLEST_NORM = 1e-12


@dataclass(frozen=True)
class ClipNoiseSettings:
    """Largest L2 norm of a row, and the noise's standard deviation a coordinate as a multiple of it.

    Hidden rows of a real model have norms of a hundred and more, and the first row of a sequence often a hundred times
    that; clipping such a row breaks the layers that rely on it. `tln prepare` prints both for public text.
    """

    clip_norm: float = 1.0
    """Largest L2 norm of a row before the noise."""
    noise_multiplier: float = 0.35
    """Standard deviation of the noise on each value, as a multiple of the clip norm."""


class ClipRows(Mechanism):
    """Scales rows down to `clip_norm`; shorter rows stay."""

    name = "clip"
    stage = Stage.CLIP

    def __init__(self, clip_norm: float) -> None:
        super().__init__()
        self.clip_norm = clip_norm

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:  # noqa: ARG002 - the seam
        """Every row's L2 norm at most `clip_norm`."""
        return ProtectedFrame(clip_rows(frame.rows, self.clip_norm), frame.truth)

    def describe(self) -> Description:
        """The norm."""
        return {"clip_norm": self.clip_norm}


class NoiseRows(Mechanism):
    """Adds fresh Gaussian noise to every row of the frame."""

    name = "noise"
    stage = Stage.NOISE

    def __init__(self, sigma: float, keys: FrameKeys) -> None:
        super().__init__()
        self.sigma = sigma
        self._keys = keys

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """Rows plus noise of the stream (session, step)."""
        purpose = f"forward-noise-priming-{context.priming}" if context.priming else "forward-noise"
        noise = self._keys.stream(context.step, purpose).gaussian_like(frame.rows, self.sigma)
        return ProtectedFrame(frame.rows + noise, frame.truth)

    def describe(self) -> Description:
        """The standard deviation a coordinate."""
        return {"sigma": self.sigma}


def clip_rows(rows: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Rows [..., D] scaled so that no L2 norm exceeds `clip_norm`; differentiable, zero rows stay zero."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
    scale: torch.Tensor = (clip_norm / norms.clamp_min(_SMALLEST_NORM)).clamp_max(1.0)
    return rows * scale.to(rows.dtype)


def check_clip_noise(clip_norm: float, noise_multiplier: float, section: str) -> None:
    """SettingsError unless both are finite and above 0: a clip without noise hides nothing."""
    for name, value in (("clip_norm", clip_norm), ("noise_multiplier", noise_multiplier)):
        if not (math.isfinite(value) and value > 0):
            raise SettingsError(
                f"{section}.{name} is {value}",
                remedy="use a finite number above 0, or leave the mechanism out",
            )


def _check(settings: ClipNoiseSettings, stack: StackName) -> None:  # noqa: ARG001 - the registry's signature
    check_clip_noise(settings.clip_norm, settings.noise_multiplier, "frame.clip_noise")


def _build(settings: ClipNoiseSettings, inputs: MechanismInputs) -> list[Mechanism]:
    return [
        ClipRows(settings.clip_norm),
        NoiseRows(settings.noise_multiplier * settings.clip_norm, inputs.keys),
    ]


SPEC = MechanismSpec(name="clip_noise", build=_build, check=_check)
