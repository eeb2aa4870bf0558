"""The decoy pool: earlier rows (or whole sequences) as they were after clipping and before noise.

A pool never holds a released row: a row re-sent with its old noise is found again by its exact norm, and a row noised
again has a larger norm than a fresh one. It gives nothing before it is full, so no frame goes out with fewer decoys
than configured. First in, first out; older rows come from an older encoder, which is a drift the audit measures.

Items are rows [D] or sequences [T, D]; the truth about each row is kept beside it for the sealed truth file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch

from splitwire.errors import StateError
from tln.context import NO_DOCUMENT, NO_LABEL, RowTruth
from tln.mechanisms.base import Mechanism

_TRUTH_NAMES = tuple(field.name for field in fields(RowTruth))


class DecoyPool:
    """A ring of `capacity` items. Detached from autograd, float32 or the dtype of the first item, on the CPU."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_items = 0
        self._next = 0
        self._rows: torch.Tensor | None = None
        self._truth: RowTruth | None = None

    @property
    def is_full(self) -> bool:
        """Whether `capacity` items are in."""
        return self.num_items == self.capacity

    def add(self, items: torch.Tensor, truth: RowTruth | None) -> None:
        """Takes items [K, D] or [K, T, D], the newest last; replaces the oldest. Truth tensors are [K] or [K, T]."""
        items = items.detach()[-self.capacity :].cpu()
        rows, known = self._storage(items)
        slots = (torch.arange(len(items)) + self._next) % self.capacity
        rows[slots] = items
        for name, values in vars(truth or unknown_truth(items.shape[:-1])).items():
            getattr(known, name)[slots] = values[-self.capacity :].to(getattr(known, name).dtype)
        self._next = (self._next + len(items)) % self.capacity
        self.num_items = min(self.capacity, self.num_items + len(items))

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, RowTruth]:
        """Items at `indices` of any shape, and the truth about them with `real` false. StateError until full."""
        if self._rows is None or self._truth is None or not self.is_full:
            raise StateError(
                f"the decoy pool holds {self.num_items} of {self.capacity} items",
                remedy="fill the pool before the first frame; no frame goes out with fewer decoys",
            )
        known = self._truth
        return self._rows[indices], RowTruth(
            torch.zeros_like(known.real[indices]),
            known.order[indices],
            known.token[indices],
            known.label[indices],
            known.document[indices],
        )

    def state(self) -> dict[str, torch.Tensor]:
        """Every item, the truth about it, and where the next one goes."""
        if self._rows is None or self._truth is None:
            return {}
        counters = torch.tensor([self.num_items, self._next])
        return {"rows": self._rows.clone(), "counters": counters} | {
            f"truth.{name}": values.clone() for name, values in vars(self._truth).items()
        }

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the state of a pool of the same capacity. StateError otherwise."""
        if not tensors:
            return
        rows, counters = tensors["rows"], tensors["counters"].tolist()
        if len(rows) != self.capacity:
            raise StateError(
                f"a decoy pool of {len(rows)} items was saved, and this one holds {self.capacity}",
                remedy="resume with the settings of the run that saved it",
            )
        self.num_items, self._next = counters
        self._rows = rows.clone()
        self._truth = RowTruth(**{name: tensors[f"truth.{name}"].clone() for name in _TRUTH_NAMES})

    def _storage(self, items: torch.Tensor) -> tuple[torch.Tensor, RowTruth]:
        if self._rows is None or self._truth is None:
            self._rows = torch.zeros((self.capacity, *items.shape[1:]), dtype=items.dtype)
            self._truth = unknown_truth((self.capacity, *items.shape[1:-1]))
        if self._rows.shape[1:] != items.shape[1:]:
            raise StateError(
                f"the decoy pool holds items of shape {list(self._rows.shape[1:])}, got {list(items.shape[1:])}",
                remedy="use sequences of one length while decoys are on",
            )
        return self._rows, self._truth


def unknown_truth(shape: tuple[int, ...]) -> RowTruth:
    """Truth tensors of rows about which nothing is known."""
    return RowTruth(
        real=torch.zeros(shape, dtype=torch.bool),
        order=torch.zeros(shape, dtype=torch.int64),
        token=torch.full(shape, -1, dtype=torch.int64),
        label=torch.full(shape, NO_LABEL, dtype=torch.int64),
        document=torch.full(shape, NO_DOCUMENT, dtype=torch.int64),
    )


class PooledMechanism(Mechanism):
    """A mechanism that draws from a pool of earlier items, is ready once it is full, and resumes with it."""

    def __init__(self, pool_size: int) -> None:
        super().__init__()
        self.pool = DecoyPool(pool_size)

    @property
    def is_ready(self) -> bool:
        """Whether the pool is full."""
        return self.pool.is_full

    def state(self) -> dict[str, torch.Tensor]:
        """The pool, for a checkpoint. TLN only."""
        return self.pool.state()

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The pool of a checkpoint."""
        self.pool.load_state(tensors)
