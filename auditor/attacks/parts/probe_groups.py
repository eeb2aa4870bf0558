"""The restarts of one class of probe on one view, trained together (stacked.py) and read one by one.

One pass over the data, in one order, trains them all; each is initialised from a seed of its own. What a group reads is
a function of its view, settings and seeds, for it works on one thread and shares nothing that changes.

The graph probe reads frames in windows (windows.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from auditor.arrays import Integers
from auditor.attacks.parts.chunks import SCORE_LOGITS, log_probability_chunks
from auditor.attacks.parts.invariants import NUM_INVARIANTS
from auditor.attacks.parts.probe_data import ProbeData
from auditor.attacks.parts.probes import INVARIANT_WIDTH, GraphProbe, RowProbe, squared_gram_graph
from auditor.attacks.parts.stacked import StackedGraphs, StackedRows, train_step, write_back
from auditor.attacks.parts.windows import WINDOW_ROWS, batches_of, windows_of
from auditor.plan import ProbeSettings
from auditor.progress import Tick
from splitwire.backbone import usable_device

_NO_CLASS = -1
Chunks = Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]
_Probe = TypeVar("_Probe", bound=nn.Module)


class Group(Protocol):
    """The restarts of one class of probe on one view."""

    names: tuple[str, ...]
    classes: Integers
    epochs: int

    def fit(self, tick: Tick) -> None:
        """Trains all of them, once; ticks at every update."""
        ...

    def log_probabilities(self, restart: int) -> Chunks:
        """Log-probabilities of one of them over the classes of every score row, in chunks."""
        ...


class RowGroup:
    """Probes that read rows one by one, with or without their coordinates."""

    def __init__(
        self, data: ProbeData, settings: ProbeSettings, seeds: Mapping[str, int], order_seed: int, *, with_rows: bool
    ) -> None:
        self.names, self.classes, self._data = tuple(seeds), data.classes, data
        self._settings, self._order_seed, self._with_rows = settings, order_seed, with_rows
        self.epochs = settings.epochs_over(len(data.train_rows))
        self._device, self._once = usable_device(settings.device), _Once()
        width = data.rows.shape[1]
        shape = (width + NUM_INVARIANTS, max(64, 2 * width)) if with_rows else (NUM_INVARIANTS, INVARIANT_WIDTH)
        self._probes = _seeded(lambda: RowProbe(*shape, len(data.classes)), seeds)

    def fit(self, tick: Tick) -> None:
        """Trains the probes on the train rows, once; ticks at every update."""
        self._once.run(lambda: self._fit(tick))

    def _fit(self, tick: Tick) -> None:
        data, settings = self._data.to(self._device), self._settings
        stack = StackedRows(self._probes).to(self._device)
        optimizer, generator = _optimizer(stack, settings), torch.Generator().manual_seed(self._order_seed)
        num_rows = len(data.train_rows)
        for epoch in range(self.epochs):
            order = torch.randperm(num_rows, generator=generator).to(self._device)
            for start in range(0, num_rows, settings.batch_rows):
                tick((epoch + start / num_rows) / self.epochs)
                batch = order[start : start + settings.batch_rows]
                hidden = stack.hidden(self._inputs(data, data.train_rows[batch]))
                train_step(stack, optimizer, hidden, data.train_classes[batch])
        write_back(stack)

    def log_probabilities(self, restart: int) -> Chunks:
        """Log-probabilities of one probe over the classes of every score row, in chunks."""
        data, probe = self._data.to(self._device), self._probes[restart].to(self._device)

        def logits_of(positions: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = probe(self._inputs(data, data.score_rows[positions.to(self._device)]))
            return logits

        return log_probability_chunks(len(data.score_rows), len(self.classes), logits_of)

    def _inputs(self, data: ProbeData, rows: torch.Tensor) -> torch.Tensor:
        invariants = data.invariants[rows]
        return torch.cat([data.rows[rows], invariants], dim=1) if self._with_rows else invariants


class GraphGroup:
    """Probes that read whole frames."""

    def __init__(self, data: ProbeData, settings: ProbeSettings, seeds: Mapping[str, int], order_seed: int) -> None:
        self.names, self.classes, self._data = tuple(seeds), data.classes, data
        self._settings, self._order_seed = settings, order_seed
        self.epochs = settings.epochs_over(len(data.rows))
        self._device, self._once = usable_device(settings.device), _Once()
        self._windows = windows_of(data.offsets)
        self._probes = _seeded(lambda: GraphProbe(len(data.classes)), seeds)

    def fit(self, tick: Tick) -> None:
        """Trains the probes on the train rows, whole frames at a time, once; ticks at every update."""
        self._once.run(lambda: self._fit(tick))

    def _fit(self, tick: Tick) -> None:
        settings, data = self._settings, self._data.to(self._device)
        stack = StackedGraphs(self._probes).to(self._device)
        label = torch.full((len(data.rows),), _NO_CLASS)
        label[self._data.train_rows] = self._data.train_classes
        windows = [window for window in self._windows if (label[slice(*window)] != _NO_CLASS).any()]
        optimizer, generator = _optimizer(stack, settings), torch.Generator().manual_seed(self._order_seed)
        for epoch in range(self.epochs):
            order = [windows[i] for i in torch.randperm(len(windows), generator=generator)]
            num_read = 0
            for batch in batches_of(order, settings.batch_rows):
                tick((epoch + num_read / len(windows)) / self.epochs)
                num_read += len(batch)
                index, real = _frame_rows(batch)
                classes = torch.where(real, label[index], _NO_CLASS).flatten()
                wanted = torch.nonzero(classes != _NO_CLASS).squeeze(1)
                hidden = stack.hidden(*_frames(data, index, real)).index_select(0, wanted.to(self._device))
                train_step(stack, optimizer, hidden, classes[wanted].to(self._device))
        write_back(stack)

    @torch.no_grad()
    def log_probabilities(self, restart: int) -> Chunks:
        """Log-probabilities of one probe over the classes of every score row, in chunks of frames."""
        data, probe = self._data.to(self._device), self._probes[restart].to(self._device)
        position = torch.full((len(data.rows),), -1)
        position[self._data.score_rows] = torch.arange(len(data.score_rows))
        chunk = max(WINDOW_ROWS, min(8192, SCORE_LOGITS // max(1, len(self.classes))))
        for batch in batches_of([w for w in self._windows if (position[slice(*w)] >= 0).any()], chunk):
            index, real = _frame_rows(batch)
            wanted = real & (position[index] >= 0)
            hidden = probe.hidden(*_frames(data, index, real))
            logits = probe.head(hidden[wanted.to(self._device)])
            yield position[index[wanted]].numpy(), logits.log_softmax(-1).cpu().numpy()


def _frame_rows(windows: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers [F, R] of the windows, and which of them are no padding; padding has the number of a first row."""
    longest = max(end - start for start, end in windows)
    starts, ends = torch.tensor(windows).unbind(1)
    index = starts[:, None] + torch.arange(longest)
    real = index < ends[:, None]
    return torch.where(real, index, starts[:, None]), real


def _frames(data: ProbeData, index: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invariants [F, R, 22] and graphs [F, R, R] of the frames of these rows."""
    index, real = index.to(data.rows.device), real.to(data.rows.device)
    return data.invariants[index], squared_gram_graph(data.rows[index] * real.unsqueeze(-1))


class _Once:
    """Work that is done once, whoever asks for it, and again only where it failed."""

    def __init__(self) -> None:
        self._lock, self._done = threading.Lock(), False

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            if not self._done:
                work()
            self._done = True


def _optimizer(stack: nn.Module, settings: ProbeSettings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(stack.parameters(), lr=settings.learning_rate, fused=True)


def _seeded(make: Callable[[], _Probe], seeds: Mapping[str, int]) -> tuple[_Probe, ...]:
    """A probe from every seed; the process's random state comes back."""
    probes = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds.values():
            torch.manual_seed(seed)
            probes.append(make().eval())
    return tuple(probes)
