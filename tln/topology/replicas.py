"""K nodes compute the same; their median goes on, and a node that deviates is named.

Every node gets the same bytes: this costs K times the traffic and shows nobody more than one node would see. The median
is taken value by value. A node deviates when a row of its answer is farther from the median row than `max_deviation`
times that row's norm (or the mean norm of rows, for a row that is nearly zero); the same goes for the gradient norms
that nodes report. While fewer than half of the nodes lie, the median is bounded by honest answers.

It finds a lie that changes an answer, nothing else: nodes that collude in the majority win, a deviation below the bound
goes through, and what a node reads or keeps is not touched. Nodes must compute alike: the stack starts from public
values (common_start), and other hardware or thread counts differ in the last bits.

Source: Privacy Failure in Split-LLM Training, replica cross-check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch

from splitwire.errors import PeerError
from splitwire.logging import get_logger
from tln.crossing import Crossing
from tln.outgoing import GradientPolicy
from tln.topology.group import GroupCrossing

_log = get_logger(__name__)
_SMALLEST_NORM = 1e-12


class ReplicaCrossing(GroupCrossing):
    """At least three nodes. `suspects` counts the answers of each node that deviated, by name."""

    def __init__(
        self,
        members: Sequence[Crossing],
        names: Sequence[str],
        policy: GradientPolicy | None,
        *,
        max_deviation: float,
        on_deviation: Literal["stop", "warn"] = "stop",
    ) -> None:
        super().__init__(members, names, policy)
        self.max_deviation = max_deviation
        self.on_deviation = on_deviation
        self.suspects: Counter[str] = Counter()

    def split(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The same rows for each."""
        return [rows] * len(self.members)

    def join(self, answers: Sequence[torch.Tensor], step: int) -> torch.Tensor:
        """The median; PeerError when a node deviates and that is to stop the run."""
        middle = median(answers)
        self._judge([relative_deviation(answer, middle) for answer in answers], step)
        return middle

    def join_norms(self, squared_norms: Sequence[float], step: int) -> float:
        """The median."""
        values = [torch.tensor([[value]], dtype=torch.float64) for value in squared_norms]
        return self.join(values, step).item()

    def _judge(self, deviations: Sequence[float], step: int) -> None:
        found = [
            (name, value) for name, value in zip(self.names, deviations, strict=True) if not value <= self.max_deviation
        ]
        for name, value in found:
            self.suspects[name] += 1
            _log.warning("untrusted node deviates", node=name, step=step, relative_deviation=round(value, 4))
        if found and self.on_deviation == "stop":
            told = ", ".join(f"{name} by {value:.3g}" for name, value in found)
            raise PeerError(
                f"step {step}: answers deviate from the median of {len(self.members)} untrusted nodes: {told} of the "
                f"norm, topology.max_deviation is {self.max_deviation}",
                remedy="look at what runs there; start again without it, or with topology.on_deviation = 'warn'",
            )


def median(answers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Median of K tensors value by value; the mean of the middle two when K is even."""
    ordered = torch.stack(list(answers)).sort(dim=0).values
    low, high = ordered[(len(answers) - 1) // 2], ordered[len(answers) // 2]
    return low if len(answers) % 2 else (low + high) / 2


def relative_deviation(answer: torch.Tensor, middle: torch.Tensor) -> float:
    """Largest over rows [..., D] of |answer - middle| relative to the middle row's norm or the mean one."""
    norms = torch.linalg.vector_norm(middle.double(), dim=-1)
    distances = torch.linalg.vector_norm(answer.double() - middle.double(), dim=-1)
    return float((distances / norms.clamp_min(norms.mean().clamp_min(_SMALLEST_NORM))).max())
