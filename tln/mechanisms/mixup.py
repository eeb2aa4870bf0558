"""Secret mixup: what is released of a row is `share` of the row and the rest of an earlier row that nobody else knows.

The partner is drawn afresh for every row of every frame, by the frame keys, from a pool of earlier rows as they were
after clipping. Rows are mixed before they enter the decoy pool, so decoys are mixtures of the same kind and a norm
tells nothing; a mixture is never longer than the clip, so the noise covers it as before.

The restore takes the partner's part away again and scales up. That is exact for a node that returns rows as they came;
what a surrogate adds is scaled up too, and the noise with it.

Refused: the transformer stack, whose real layers make nothing of a row that is two rows; without clip and noise, since
a pool without noise repeats what was released; any frame before the pool is full.

Source: secret mixup of Privacy Failure in Split-LLM Training (released = .75 z + .25 decoy). It is no certificate:
`share` of the row is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from splitwire.errors import SettingsError
from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.base import Description, Mechanism, MechanismInputs, MechanismSpec, StackName, Stage, map_truth
from tln.mechanisms.pool import PooledMechanism

_LARGEST_POOL = 1 << 22


@dataclass(frozen=True)
class MixupSettings:
    """How much of a row stays, and how many earlier rows the rest is drawn from."""

    share: float = 0.75
    """Part of a released row that is the row itself, above 0.5 and below 1; the rest is a secret earlier row."""
    pool_size: int = 1024
    """Earlier rows from which partners are drawn. Nothing crosses before it is full."""


class Mixup(PooledMechanism):
    """Every row with a secret partner of its own."""

    name = "mixup"
    stage = Stage.BLEND

    def __init__(self, settings: MixupSettings, keys: FrameKeys) -> None:
        super().__init__(settings.pool_size)
        self.share = settings.share
        self._keys = keys

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """share * row + (1 - share) * partner, [N, R, D]. Training rows then enter the pool, as they were."""
        num, length = frame.rows.shape[:2]
        purpose = f"{self.name}-priming-{context.priming}" if context.priming else self.name
        drawn = self._keys.stream(context.step, purpose).uniforms(num, length) * self.pool.capacity
        partners, _ = self.pool.take(torch.from_numpy(drawn).long())
        partners = (1.0 - self.share) * partners.to(frame.rows)
        context.stash[self.name] = partners
        if context.mode == "train":
            self.absorb(frame)
        return ProtectedFrame(self.share * frame.rows + partners, frame.truth)

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """(row - partner's part) / share, of rows [N, R, D]."""
        partners: torch.Tensor = context.stash.pop(self.name)
        return (rows - partners) / self.share

    def absorb(self, frame: ProtectedFrame) -> None:
        """Puts every row of the frame into the pool."""
        self.pool.add(frame.rows.flatten(0, 1), map_truth(frame.truth, lambda values: values.flatten(0, 1)))

    def describe(self) -> Description:
        """Share and pool size."""
        return {"share": self.share, "pool_size": self.pool.capacity}


def _check(settings: MixupSettings, stack: StackName) -> None:  # noqa: ARG001 - the registry's signature
    if not 0.5 < settings.share < 1.0:
        raise SettingsError(
            f"frame.mixup.share is {settings.share}",
            remedy="use a number above 0.5 and below 1, such as 0.75, or leave mixup out of frame.mechanisms",
        )
    if not 2 <= settings.pool_size <= _LARGEST_POOL:
        raise SettingsError(
            f"frame.mixup.pool_size is {settings.pool_size}", remedy=f"use 2 to {_LARGEST_POOL}, such as 1024"
        )


def _build(settings: MixupSettings, inputs: MechanismInputs) -> list[Mechanism]:
    return [Mixup(settings, inputs.keys)]


SPEC = MechanismSpec(
    name=Mixup.name,
    build=_build,
    check=_check,
    needs=("clip_noise",),
    refusals={"transformer": "its layers compute on whole sequences, and a row mixed with a stranger's is in none"},
)
