"""The private encoder and decoder: hidden rows of width H to latent rows of width D, and back.

Encoder: LayerNorm, Linear H to 2D, GELU, Linear 2D to D, tanh. Decoder: LayerNorm, Linear D to 2D, GELU, Linear 2D to
H. What comes back is decoded and added to the head's own hidden rows, which never crossed. Initial weights come from
a generator seeded by the run key, so that nobody who sees the wire can rebuild them.

Refused: the transformer stack, whose real layers compute on rows of width H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from splitwire.errors import SettingsError
from tln.context import ProtectedFrame, StepContext
from tln.mechanisms.base import Description, Mechanism, MechanismInputs, MechanismSpec, StackName, Stage

_MAX_WIDTH = 1 << 16
"""What a node takes as the width of a row."""


@dataclass(frozen=True)
class BottleneckSettings:
    """Width of the latent rows; at least 2."""

    width: int = 64
    """Values of one latent row, at least 2."""


class Bottleneck(Mechanism):
    """Trained with the private loss; lives on the trusted node only."""

    name = "bottleneck"
    stage = Stage.ENCODE

    def __init__(self, hidden_width: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.width = width
        self.encoder = nn.Sequential(
            nn.LayerNorm(hidden_width),
            nn.Linear(hidden_width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
            nn.Tanh(),
        )
        self.decoder = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, hidden_width)
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                _initialise(module, generator)

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """[N, R, H] to [N, R, D] in float32, every value in (-1, 1)."""
        context.stash[self.name] = frame.rows
        return ProtectedFrame(self.encoder(frame.rows.float()), frame.truth)

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """[N, R, D] to [N, R, H]: the decoded rows added to the hidden rows that `protect` was given."""
        hidden: torch.Tensor = context.stash.pop(self.name)
        decoded: torch.Tensor = self.decoder(rows.float())
        return hidden + decoded.to(hidden.dtype)

    def describe(self) -> Description:
        """The latent width."""
        return {"width": self.width}


def _initialise(linear: nn.Linear, generator: torch.Generator) -> None:
    bound = 1.0 / math.sqrt(linear.in_features)
    with torch.no_grad():
        linear.weight.uniform_(-bound, bound, generator=generator)
        linear.bias.uniform_(-bound, bound, generator=generator)


def _check(settings: BottleneckSettings, stack: StackName) -> None:  # noqa: ARG001 - the registry's signature
    if not 2 <= settings.width <= _MAX_WIDTH:
        raise SettingsError(f"frame.bottleneck.width is {settings.width}", remedy=f"use 2 to {_MAX_WIDTH}, such as 64")


def _build(settings: BottleneckSettings, inputs: MechanismInputs) -> list[Mechanism]:
    if settings.width > inputs.hidden_width:
        raise SettingsError(
            f"frame.bottleneck.width is {settings.width} and the model's rows have {inputs.hidden_width} values",
            remedy=f"use at most {inputs.hidden_width}: a bottleneck is narrower than what goes through it",
        )
    return [Bottleneck(inputs.hidden_width, settings.width, inputs.generator)]


SPEC = MechanismSpec(
    name=Bottleneck.name,
    build=_build,
    check=_check,
    refusals={"transformer": "its layers compute on rows of the model's own width"},
)
