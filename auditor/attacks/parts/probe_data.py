"""What all arms of a probe have in common: rows, invariants, and the classes of the train rows.

The invariants are computed once for a view and for those that differ from it in their labels alone.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from auditor.arrays import Integers
from auditor.attacks.parts.invariants import row_invariants, standardise
from auditor.views.token import TokenView


def token_classes(tokens: Integers, max_classes: int) -> Integers:
    """Tokens that get a class, ascending: all, or the `max_classes` most frequent (ties to the smaller token)."""
    values, counts = np.unique(tokens, return_counts=True)
    if max_classes and len(values) > max_classes:
        values = np.sort(values[np.argsort(-counts, kind="stable")[:max_classes]])
    return values.astype(np.int64)


class ProbeData:
    """Tensors of a view that all arms share."""

    def __init__(self, view: TokenView, classes: Integers) -> None:
        self.classes = classes
        self.rows = torch.from_numpy(np.ascontiguousarray(view.rows))
        self.offsets = [int(offset) for offset in view.offsets]
        self.invariants: torch.Tensor = view.once(
            "invariants", lambda: standardise(row_invariants(self.rows, self.offsets))
        )
        self.score_rows = torch.from_numpy(view.score_rows)
        place = np.searchsorted(classes, view.train_tokens).clip(max=len(classes) - 1)
        known = classes[place] == view.train_tokens
        self.train_rows = torch.from_numpy(view.train_rows[known])
        self.train_classes = torch.from_numpy(place[known])

    def to(self, device: torch.device) -> ProbeData:
        """The same on a device; the processor's own tensors, which may be mapped files, are not copied."""
        if device == self.rows.device:
            return self
        moved = copy.copy(self)
        for name in ("rows", "invariants", "score_rows", "train_rows", "train_classes"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved
