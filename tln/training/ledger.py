"""One ledger of what a run released about each document: every forward row and every gradient row, decoys included.

Adjacency is one document. A row of a frame is charged to the document that it comes from, whether it is real, a decoy
drawn from earlier text, or a replayed block; a TRAIN frame is charged again for its gradient rows. One row that is
clipped to C and noised with sigma a coordinate costs, in zero-concentrated differential privacy (Bun and Steinke 2016,
proposition 1.6), C^2 / (2 sigma^2) under add/remove and four times that under replacement of a row.

What the sum is not: a guarantee, unless every reason that this module knows against it is absent, and then only the
stated one. `reasons` lists them; with any of them the ledger says "no DP claim" and gives the sums as plain counts.

Refused: nothing. A frame about whose rows nothing is known is counted, and is itself a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tln.context import RowTruth, StepContext

NO_CLAIM = "no DP claim"
DELTA = 1e-5
"""The delta at which epsilon is told."""
LARGEST_EPSILON = 10.0
"""A guarantee with more than this says nothing that anybody should rely on."""

_REPLACE_FACTOR = 4.0


@dataclass(frozen=True)
class RowPrices:
    """What one row costs under add/remove, in zCDP rho; infinite where nothing is clipped or noised."""

    forward: float
    gradient: float

    @classmethod
    def of(cls, defence: Mapping[str, Any]) -> RowPrices:
        """From the defence in force, as effective settings tell it."""
        frame, gradient = defence["frame"], defence["gradient"]
        forward = row_rho(frame.get("clip", {}).get("clip_norm"), frame.get("noise", {}).get("sigma"))
        return cls(forward, row_rho(gradient.get("clip_norm"), gradient.get("sigma")))


def row_rho(clip_norm: float | None, sigma: float | None) -> float:
    """clip_norm^2 / (2 sigma^2) of one release of one row, add/remove; infinite without clip or without noise."""
    return math.inf if clip_norm is None or not sigma else clip_norm**2 / (2 * sigma**2)


def epsilon(rho: float, delta: float = DELTA) -> float:
    """(epsilon, delta)-differential privacy that rho-zCDP implies (Bun and Steinke 2016, proposition 1.3)."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


@dataclass
class Ledger:
    """Counts by document while a run goes on; a listener of the crossing's FORWARD frames. TLN only.

    `num_documents` is the length of the truth file's documents table.
    """

    num_documents: int
    prices: RowPrices
    reasons: list[str]
    num_unattributed_frames: int = 0
    _counts: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        names = ("real", "decoy", "gradient")
        self._counts = {name: torch.zeros(self.num_documents, dtype=torch.int64) for name in names}

    def __call__(self, context: StepContext, truth: RowTruth | None, _messages: Sequence[bytes]) -> None:
        """Charges the frame's rows [N, R] to their documents, and their gradient rows when the step trains."""
        if truth is None:
            self.num_unattributed_frames += 1
            return
        documents = truth.document.cpu().flatten()
        real, known = truth.real.cpu().flatten(), documents >= 0
        self._charge("real", documents[known & real])
        self._charge("decoy", documents[known & ~real])
        if context.mode == "train":
            self._charge("gradient", documents[known])

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: the counts so far."""
        return {**self._counts, "num_unattributed_frames": torch.tensor(self.num_unattributed_frames)}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `state` gave. Frames sent after that checkpoint cross again with the same bytes, so they count once."""
        self._counts = {name: tensors[name].clone() for name in self._counts}
        self.num_unattributed_frames = int(tensors["num_unattributed_frames"])

    def summary(self) -> dict[str, Any]:
        """Plain values for a report: the document that was charged most, and the claim or why there is none."""
        forward = self._counts["real"] + self._counts["decoy"]
        rho = self._rho(forward, self._counts["gradient"])
        reasons = [*self.reasons, *self._reasons_of_counts(rho)]
        return {
            "adjacency": "document",
            "rho_a_forward_row": _finite(self.prices.forward),
            "rho_a_gradient_row": _finite(self.prices.gradient),
            "num_charged_documents": int((forward > 0).sum()),
            **{f"most_{name}_rows_of_a_document": int(_largest(rows)) for name, rows in self._counts.items()},
            "largest_rho_add_remove": _finite(rho),
            "largest_rho_replace": _finite(_REPLACE_FACTOR * rho),
            "delta": DELTA,
            "epsilon": None if reasons else epsilon(rho),
            "claim": NO_CLAIM if reasons else f"({epsilon(rho):.3g}, {DELTA:g})-DP a document, add/remove",
            "reasons": reasons,
        }

    def _charge(self, name: str, documents: torch.Tensor) -> None:
        self._counts[name] += torch.bincount(documents, minlength=self.num_documents)[: self.num_documents]

    def _rho(self, forward: torch.Tensor, gradient: torch.Tensor) -> float:
        """The largest sum over documents. A price that is infinite counts where rows were released at it."""
        total = torch.zeros(self.num_documents, dtype=torch.float64)
        for rows, price in ((forward, self.prices.forward), (gradient, self.prices.gradient)):
            total += torch.where(rows > 0, rows.to(torch.float64) * price, 0.0)
        return float(_largest(total))

    def _reasons_of_counts(self, rho: float) -> list[str]:
        reasons = []
        if self.num_unattributed_frames:
            reasons.append(f"{self.num_unattributed_frames} frames crossed whose documents are not known")
        if not math.isfinite(rho):
            reasons.append("rows crossed that were not both clipped and noised")
        elif epsilon(rho) > LARGEST_EPSILON:
            reasons.append(f"the sum of the document charged most is epsilon {epsilon(rho):.3g} at delta {DELTA:g}")
        return reasons


def reasons_against(defence: Mapping[str, Any], *, trains_on_private_text: bool, has_fresh_noise: bool) -> list[str]:
    """Why the sum of rows would be no guarantee even if it were small."""
    reasons = []
    if trains_on_private_text:
        reasons.append(
            "the trusted parts learn from private text without noise, so later rows of one document tell about others"
        )
    if defence["gradient"].get("policy") == "matched":
        reasons.append("gradient rows of decoys are drawn from earlier rows of documents that are not told apart")
    if "mixup" in defence["frame"]:
        reasons.append("a mixed row holds two documents and is charged to one")
    if has_fresh_noise:
        reasons.append("rows that crossed after the last checkpoint crossed again with fresh noise, and count once")
    return reasons


def _largest(values: torch.Tensor) -> torch.Tensor:
    return values.max() if len(values) else torch.zeros(())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
