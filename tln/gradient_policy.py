"""What happens to the gradient before it crosses: the only other place, beside the frame, where a defence acts.

`open` sends the raw gradient. Decoy rows bear no loss, so theirs is exactly zero and the untrusted node reads from
one frame which rows are real. It exists to show that, and needs `unsafe = true`. `clip_noise` clips every row and
adds fresh noise to every row, zero rows included; a calibrated classifier of row norms may still tell them apart over
many frames, which the audit measures. `matched` and `replay` give decoys something to bear, and then clip and noise as
`clip_noise` does: `matched` draws their gradient rows from those of real rows (tln.mechanisms.matched_gradient),
`replay` sends whole training blocks in their place, which bear a loss of their own (tln.mechanisms.replay).

The clip is an absolute norm, or a multiple of the median gradient norm of a run on PUBLIC text (never on the private
one: a clip computed from private gradients would tell about them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from splitwire.errors import SettingsError
from tln.context import StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import DecoyLoss, Description
from tln.mechanisms.clip_noise import check_clip_noise, clip_rows

OPEN_WARNING = (
    "UNSAFE: gradient.policy is 'open'. Gradients leave this node raw; the untrusted node can read from a single "
    "frame which rows are decoys, and what the gradients tell about labels. Use it on public or throw-away text only."
)


PolicyName = Literal["open", "clip_noise", "matched", "replay"]


@dataclass(frozen=True)
class GradientSettings:
    """`clip_norm` is used when `clip_multiple` is 0, else the clip is clip_multiple times the public median norm.

    Noise a coordinate has standard deviation noise_multiplier times the clip.
    """

    policy: PolicyName = "clip_noise"
    """Gradients leave as they are (open, unsafe) or clipped and noised; decoys then bear no loss (clip_noise), gradient
    rows like those of real rows (matched), or are whole training blocks with a loss of their own (replay)."""
    unsafe: bool = False
    """Must be true for the policy `open`."""
    clip_norm: float = 0.01
    """Largest L2 norm of a gradient row, where `clip_multiple` is 0."""
    clip_multiple: float = 0.0
    """The clip as a multiple of the median gradient norm on public text; 0 uses `clip_norm`."""
    noise_multiplier: float = 0.35
    """Standard deviation of the noise on each value, as a multiple of the clip."""


class GradientPolicy(Protocol):
    """Turns the gradient with respect to the returned rows [N, R, D] into what may cross."""

    def __call__(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The gradient to send; same shape."""
        ...

    def describe(self) -> Description:
        """The policy in force and its parameters."""
        ...


class OpenGradient:
    """Sends the gradient as it is."""

    def __call__(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:  # noqa: ARG002 - the seam
        """The raw gradient."""
        return gradient

    def describe(self) -> Description:
        """Named unsafe."""
        return {"policy": "open", "unsafe": True}


class ClipNoiseGradient:
    """Clips every row to `clip_norm` and adds Gaussian noise of `sigma` a coordinate to every row."""

    def __init__(
        self, clip_norm: float, noise_multiplier: float, keys: FrameKeys, policy: PolicyName = "clip_noise"
    ) -> None:
        self.policy = policy
        self.clip_norm = clip_norm
        self.sigma = clip_norm * noise_multiplier
        self._keys = keys

    def __call__(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Clipped rows plus noise of the stream (session, step)."""
        noise = self._keys.stream(context.step, "gradient-noise").gaussian_like(gradient, self.sigma)
        return clip_rows(gradient, self.clip_norm) + noise

    def describe(self) -> Description:
        """Clip and standard deviation."""
        return {"policy": self.policy, "clip_norm": self.clip_norm, "sigma": self.sigma}


def decoy_loss(settings: GradientSettings) -> DecoyLoss:
    """What the policy has decoys bear."""
    return settings.policy if settings.policy in ("matched", "replay") else "none"


def check_gradient(settings: GradientSettings) -> None:
    """SettingsError for the open gradient without the flag, a flag without effect, and unusable numbers."""
    if settings.policy == "open":
        if not settings.unsafe:
            raise SettingsError(
                "gradient.policy 'open' shows which rows are decoys",
                remedy="use 'clip_noise', or set gradient.unsafe = true for a demonstration on throw-away text",
            )
        return
    if settings.unsafe:
        raise SettingsError(
            f"gradient.unsafe is set and the policy is {settings.policy!r}",
            remedy="remove gradient.unsafe, or set gradient.policy = 'open'; with --preset one of the two may be the "
            "preset's, and the other from the file",
        )
    if not (math.isfinite(settings.clip_multiple) and settings.clip_multiple >= 0):
        raise SettingsError(
            f"gradient.clip_multiple is {settings.clip_multiple}",
            remedy="use a multiple above 0, such as 2.0, or 0 for gradient.clip_norm",
        )
    check_clip_noise(settings.clip_multiple or settings.clip_norm, settings.noise_multiplier, "gradient")


def build_gradient_policy(
    settings: GradientSettings, keys: FrameKeys, public_median_norm: float | None = None
) -> GradientPolicy:
    """The policy that the settings name; `public_median_norm` is needed when the clip is a multiple of it."""
    check_gradient(settings)
    if settings.policy == "open":
        return OpenGradient()
    if not settings.clip_multiple:
        return ClipNoiseGradient(settings.clip_norm, settings.noise_multiplier, keys, settings.policy)
    if public_median_norm is None:
        raise SettingsError(
            "gradient.clip_multiple needs a calibration on public text",
            remedy="set corpus.public_path and run tln prepare, or set gradient.clip_multiple = 0",
        )
    if not (math.isfinite(public_median_norm) and public_median_norm > 0):
        raise SettingsError(
            f"the calibration of gradient.clip_multiple found a median gradient norm of {public_median_norm}",
            remedy="lower the noise of the frame or use other public text, or set gradient.clip_multiple = 0",
        )
    clip_norm = settings.clip_multiple * public_median_norm
    return ClipNoiseGradient(clip_norm, settings.noise_multiplier, keys, settings.policy)
