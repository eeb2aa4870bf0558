"""Settings of the adversaries in training, off by default. A setting that would be without effect is refused."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from splitwire.errors import SettingsError

HEADS = ("token", "property", "reconstruction")
NO_CERTIFICATE = "estimate and penalty; no certificate"
UNFELT_WARNING = (
    "NO ADVERSARY ACTS: the run ends within adversaries.warmup_steps, so the encoder never feels the heads and MINE. "
    "Lower the warm-up, or train for more steps."
)

_MAX_WIDTH = 1 << 14
_MAX_UPDATES = 64


@dataclass(frozen=True)
class AdversarySettings:
    """Which adversaries read the released rows while training, and how much their success costs the encoder.

    Published in Privacy Failure in Split-LLM Training: heads token, property and reconstruction at strength 1.0, 3
    updates a step, 200 steps of warm-up, AdamW at 3e-4, MINE at 0.1.
    """

    heads: tuple[str, ...] = ()
    """Heads that are on: token (the next token), property (whether that token is rare), reconstruction (the hidden
    row). Their order does not matter."""
    strength: float = 1.0
    """Weight of the heads' reversed gradient in the encoder."""
    updates: int = 3
    """Updates of the adversaries in every step."""
    warmup_steps: int = 200
    """First steps in which the adversaries learn and the encoder does not yet feel them."""
    learning_rate: float = 3e-4
    """Learning rate of the adversaries (AdamW)."""
    hidden_width: int = 256
    """Width of the adversaries' hidden layers."""
    token_classes: int = 0
    """Most frequent next tokens that are told apart, the others sharing one class; 0 for every one that occurs."""
    mine_weight: float = 0.0
    """Weight of the estimated information (nats) between a released row and its next token; 0 for off. It is no
    certificate."""
    gram_weight: float = 0.0
    """Weight of the spread of cosines between the rows of a frame, which a rotation leaves readable; 0 for off."""

    @property
    def has_networks(self) -> bool:
        """Whether anything here learns."""
        return bool(self.heads) or self.mine_weight > 0

    @property
    def is_on(self) -> bool:
        """Whether the encoder feels anything of this section."""
        return self.has_networks or self.gram_weight > 0


def check_adversaries(settings: AdversarySettings, mechanisms: tuple[str, ...]) -> None:
    """SettingsError for unknown heads, numbers out of range, idle settings, and where there is nothing to train."""
    _check_heads(settings)
    _check_numbers(settings)
    if settings.is_on and "bottleneck" not in mechanisms:
        raise SettingsError(
            "adversaries are on and nothing before the crossing is trained: the private encoder is the bottleneck",
            remedy="add 'bottleneck' to frame.mechanisms (gram stack), or turn the adversaries off",
        )
    if not settings.has_networks:
        _refuse_idle(settings)


def describe_adversaries(settings: AdversarySettings, num_steps: int) -> dict[str, int | float | str | bool]:
    """What is on in a run of `num_steps`, for the effective defence; empty when nothing is.

    Names what is no certificate, and in how many steps the encoder feels heads and MINE.
    """
    described: dict[str, int | float | str | bool] = {}
    if settings.heads:
        described |= {"heads": ", ".join(sorted(settings.heads)), "strength": settings.strength}
    if settings.has_networks:
        felt = max(0, num_steps - settings.warmup_steps)
        described |= {"updates": settings.updates, "warmup_steps": settings.warmup_steps, "steps_felt": felt}
    if settings.mine_weight > 0:
        described |= {"mine_weight": settings.mine_weight, "mine": NO_CERTIFICATE}
    if settings.gram_weight > 0:
        described["gram_weight"] = settings.gram_weight
    return described


def _check_heads(settings: AdversarySettings) -> None:
    for name in settings.heads:
        if name not in HEADS or settings.heads.count(name) > 1:
            raise SettingsError(
                f"adversaries.heads has {name!r} {'twice' if name in HEADS else 'which is unknown'}",
                remedy=f"use each of {', '.join(HEADS)} at most once",
            )


def _check_numbers(settings: AdversarySettings) -> None:
    for name in ("strength", "learning_rate"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise SettingsError(
                f"adversaries.{name} is {value}", remedy="use a finite number above 0, or take the heads out"
            )
    for name in ("mine_weight", "gram_weight"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value >= 0):
            raise SettingsError(f"adversaries.{name} is {value}", remedy="use 0 (off) or a finite weight above 0")
    for name, lowest, highest in (("updates", 1, _MAX_UPDATES), ("hidden_width", 2, _MAX_WIDTH)):
        if not lowest <= getattr(settings, name) <= highest:
            raise SettingsError(f"adversaries.{name} is {getattr(settings, name)}", remedy=f"use {lowest} to {highest}")
    for name in ("warmup_steps", "token_classes"):
        if getattr(settings, name) < 0:
            raise SettingsError(f"adversaries.{name} is {getattr(settings, name)}", remedy="use 0 or more")


def _refuse_idle(settings: AdversarySettings) -> None:
    for field in dataclasses.fields(settings):
        if field.name != "gram_weight" and getattr(settings, field.name) != field.default:
            raise SettingsError(
                f"adversaries.{field.name} is configured and no adversary is on",
                remedy="set adversaries.heads or adversaries.mine_weight, or remove it",
            )
