"""What an active tap does to the rows that are returned: a schedule that its settings and the step give again.

Which steps are changed, by how much and in which direction follows from the seed, the session and the step, and from
nothing else. So a bundle needs no marker in every frame: who has its settings, as the audit does, computes the same
schedule; and a frame that is sent again after a broken stream is changed alike.

    amplitude    0 for control steps; for about one step in `every`, a quarter, a half or the whole of the setting
    direction    each row gets a direction of its own
    sign         a frame has one direction, and each row gets it with a sign of its own

A changed row is y + amplitude * |y| * direction, rounded to the dtype of the wire. Directions are +-1 patterns divided
by the root of the width, taken from SHAKE-256, so they do not depend on a library's random numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from splitwire.errors import SettingsError
from splitwire.settings import build
from splitwire.v1 import channels_pb2

PerturbMode = Literal["none", "direction", "sign"]
PerturbedHop = Literal["return", "input_gradient"]

LEVELS = (0.25, 0.5, 1.0)
"""Shares of the amplitude of changed steps; a sweep needs more than one."""
ACTIVE_RECORDER = "active-tap"
"""The name under which an active tap records, so that nothing takes its bundle for a passive one."""

_HOPS: dict[PerturbedHop, channels_pb2.Hop] = {
    "return": channels_pb2.HOP_RETURN,
    "input_gradient": channels_pb2.HOP_INPUT_GRADIENT,
}
_TWO_TO_64 = 2.0**64


@dataclass(frozen=True)
class PerturbSettings:
    """Whether the tap changes what the untrusted node returns in training steps, and how."""

    mode: PerturbMode = "none"
    """`none` changes nothing; `direction` a direction a row; `sign` a direction a frame and a sign a row."""
    amplitude: Annotated[float, Field(gt=0, le=100)] = 0.2
    """Largest length of a change, as a share of the row's own length."""
    every: Annotated[int, Field(ge=1)] = 2
    """About one training step in so many is changed; the others are controls."""
    seed: int = 0
    """Seed of the schedule."""
    hops: tuple[PerturbedHop, ...] = ("return",)
    """What is changed: returned rows, and the gradient that is returned after them."""

    @property
    def is_active(self) -> bool:
        """Whether anything is changed."""
        return self.mode != "none"

    def check(self) -> None:
        """SettingsError for a change that is configured and not switched on, or on no hop."""
        if not self.is_active and self != PerturbSettings():
            raise SettingsError(
                "perturb is configured and perturb.mode is none", remedy="set perturb.mode with --perturb, or remove it"
            )
        if not self.hops:
            raise SettingsError("perturb.hops is empty", remedy='use ["return"]')

    def describe(self) -> str:
        """The settings on one line."""
        hops = " and ".join(self.hops)
        return f"mode {self.mode} on {hops}, amplitude {self.amplitude:g}, every {self.every}, seed {self.seed}"


@dataclass(frozen=True)
class Schedule:
    """What happens to each frame of a tap with these settings."""

    settings: PerturbSettings

    def amplitude(self, session_hash: str, step: int, hop: channels_pb2.Hop) -> float:
        """Length of the change as a share of the row's length; 0 for a frame that passes as it is."""
        settings = self.settings
        if not settings.is_active or hop not in (_HOPS[name] for name in settings.hops):
            return 0.0
        draws = np.frombuffer(self._bytes("step", session_hash, step, hop, 16), dtype="<u8") / _TWO_TO_64
        if draws[0] >= 1 / settings.every:
            return 0.0
        return settings.amplitude * LEVELS[int(draws[1] * len(LEVELS))]

    def directions(
        self, session_hash: str, step: int, hop: channels_pb2.Hop, shape: Sequence[int], draw: int = 0
    ) -> NDArray[np.float32]:
        """Unit rows [..., D] of `shape`. Another `draw` gives directions that no frame was changed along."""
        width, num_rows = shape[-1], math.prod(shape[:-1])
        per_row = self.settings.mode != "sign"
        num_signs = num_rows * width if per_row else num_rows + width
        raw = self._bytes(f"direction {draw}", session_hash, step, hop, (num_signs + 7) // 8)
        signs = 1 - 2 * np.unpackbits(np.frombuffer(raw, np.uint8), count=num_signs).astype(np.float32)
        rows = signs.reshape(num_rows, width) if per_row else np.outer(signs[:num_rows], signs[num_rows:])
        return np.asarray(rows / np.float32(math.sqrt(width))).reshape(tuple(shape))

    def _bytes(self, what: str, session_hash: str, step: int, hop: int, count: int) -> bytes:
        text = f"splitwire perturb|{self.settings.seed}|{what}|{session_hash}|{step}|{hop}"
        return hashlib.shake_256(text.encode("ascii")).digest(count)


def perturbation_of(settings: Mapping[str, Any]) -> PerturbSettings:
    """How the recorder whose effective settings these are changed what was returned; `none` for any passive one."""
    tree = settings.get("perturb")
    return build(PerturbSettings, tree, "the bundle's settings") if isinstance(tree, dict) else PerturbSettings()


def active_line(settings: Mapping[str, Any]) -> str:
    """What a reader of a bundle is told of an active tap; empty for any passive recorder."""
    perturbation = perturbation_of(settings)
    if not perturbation.is_active:
        return ""
    return f"ACTIVE tap: what was returned in training steps was changed on its way ({perturbation.describe()})"
