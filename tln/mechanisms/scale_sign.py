"""A fresh secret scale and sign of every row: s = (+1 or -1) * exp(log_spread * N(0, 1)), the size clamped.

It hides the norm of a row, which a rotation keeps, and which side of the origin it is on. It keeps the size of every
cosine between two rows of a frame; what it keeps stays readable. Noise was added before, so the ratio of signal to
noise of a row stays too. Source: Privacy Failure in Split-LLM Training, where it is described and
was off in every published run.

Refused on the transformer stack, whose layers do not commute with it. `check_surrogate` refuses a gram surrogate that
does not commute with it: one that reads norms (radial), or the sign of a cosine (without sign_invariant).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from splitwire.errors import SettingsError
from tln.keys import FrameKeys
from tln.mechanisms.base import Description, Mechanism, MechanismInputs, MechanismSpec, StackName, Stage
from tln.mechanisms.gauge import Gauge

_FAIR = 0.5


@dataclass(frozen=True)
class ScaleSignSettings:
    """How far the secret scale of a row may be from 1."""

    log_spread: float = 0.75
    """Standard deviation of the logarithm of a row's scale."""
    smallest: float = 0.2
    """Least scale, above 0 and at most 1."""
    largest: float = 5.0
    """Greatest scale, at least 1."""


class ScaleSign(Gauge):
    """Independent for every row of every frame, decoys included."""

    name = "scale_sign"
    stage = Stage.GAUGE

    def __init__(self, settings: ScaleSignSettings, keys: FrameKeys) -> None:
        super().__init__(keys)
        self.settings = settings

    def draw(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        """Factors [N, R, 1] in the dtype of the rows, none of them 0."""
        stream, shape = self._keys.stream(step, self.name), rows.shape[:2]
        size = torch.from_numpy(stream.normals(*shape)).mul(self.settings.log_spread).exp()
        sign = torch.where(torch.from_numpy(stream.uniforms(*shape)) < _FAIR, -1.0, 1.0)
        factors = size.clamp(self.settings.smallest, self.settings.largest) * sign
        return factors.unsqueeze(-1).to(rows.device, rows.dtype)

    def act(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """Every row times its factor."""
        return rows * secret

    def undo(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """Every row divided by its factor."""
        return rows / secret

    def undo_gradient(self, rows: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
        """A gradient row carries the reciprocal of the factor."""
        return rows * secret

    def describe(self) -> Description:
        """Spread and clamp."""
        return {
            "log_spread": self.settings.log_spread,
            "smallest": self.settings.smallest,
            "largest": self.settings.largest,
        }


def check_surrogate(*, radial: bool, sign_invariant: bool) -> None:
    """SettingsError unless the gram surrogate commutes with this gauge."""
    if radial:
        raise SettingsError(
            "mechanism scale_sign is refused with stack.gram.radial = true: a radial surrogate reads and changes the "
            "norms of rows, and would compute on the secret scale instead of on the row",
            remedy="set stack.gram.radial = false, or take 'scale_sign' out of frame.mechanisms",
        )
    if not sign_invariant:
        raise SettingsError(
            "mechanism scale_sign is refused with stack.gram.sign_invariant = false: the surrogate would read the "
            "sign of a cosine, which is the secret sign and not the row's",
            remedy="set stack.gram.sign_invariant = true, or take 'scale_sign' out of frame.mechanisms",
        )


def _check(settings: ScaleSignSettings, stack: StackName) -> None:  # noqa: ARG001 - the registry's signature
    if not (math.isfinite(settings.log_spread) and settings.log_spread > 0):
        raise SettingsError(
            f"frame.scale_sign.log_spread is {settings.log_spread}",
            remedy="use a finite number above 0, such as 0.75, or take 'scale_sign' out of frame.mechanisms",
        )
    if not (math.isfinite(settings.largest) and 0 < settings.smallest <= 1 <= settings.largest):
        raise SettingsError(
            f"frame.scale_sign.smallest {settings.smallest} and largest {settings.largest} do not enclose 1",
            remedy="use 0 < smallest <= 1 <= largest, such as 0.2 and 5.0",
        )


def _build(settings: ScaleSignSettings, inputs: MechanismInputs) -> list[Mechanism]:
    return [ScaleSign(settings, inputs.keys)]


SPEC = MechanismSpec(
    name=ScaleSign.name,
    build=_build,
    check=_check,
    refusals={"transformer": "its layers do not commute with a change of a row's size"},
)
