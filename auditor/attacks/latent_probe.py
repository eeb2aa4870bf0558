"""The nine-arm latent probe: three classes of probe, three restarts each, trained to name the token of a row.

Arms differ in class and seed and see the same rows and labels. AdamW, a fixed number of epochs, no early stopping:
nothing is chosen while training. Classes are the tokens of the train rows (all, or the most frequent ones when the plan
says so); a row with another token counts as wrong. Modules are initialised one after the other, each from a seed of its
own, and fitting uses no shared random state: arms may be fitted side by side. With one thread an arm (workers.py) a
result is a function of the view, the settings and the build.

Frames longer than 256 rows are read by the graph probe in windows of 256, to bound its pair table.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from auditor.attacks.base import Assumes, Question
from auditor.attacks.invariants import NUM_INVARIANTS, row_invariants, standardise
from auditor.attacks.probes import INVARIANT_WIDTH, GraphProbe, RowProbe, squared_gram_graph
from auditor.capture import Integers
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress, Tick
from auditor.views.token import TokenView

_WINDOW_ROWS = 256
_SCORE_LOGITS = 1 << 23  # logits in memory at once
_NO_CLASS = -1


class LatentProbe:
    """Trains the arms of the plan on one view."""

    name = "latent_probe"
    question: Question = "token"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "nine-arm latent probe with 22 invariants"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[RowArm | GraphArm]:
        """One arm for every probe and restart, initialised and not yet fitted."""
        del progress
        data = ProbeData(view, token_classes(view.train_tokens, settings.max_classes))
        return [
            (GraphArm if probe == "invariant_graph" else RowArm)(
                f"{probe}/{restart}", probe, data, settings, _arm_seed(view, probe, restart)
            )
            for probe in settings.probes
            for restart in range(settings.restarts)
        ]


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
        self.invariants = standardise(row_invariants(self.rows, self.offsets))
        self.score_rows = torch.from_numpy(view.score_rows)
        place = np.searchsorted(classes, view.train_tokens).clip(max=len(classes) - 1)
        known = classes[place] == view.train_tokens
        self.train_rows = torch.from_numpy(view.train_rows[known])
        self.train_classes = torch.from_numpy(place[known])


class RowArm:
    """An arm that reads rows one by one, with or without their coordinates."""

    def __init__(self, name: str, probe: str, data: ProbeData, settings: ProbeSettings, seed: int) -> None:
        self.name, self.classes, self._data = name, data.classes, data
        self._with_rows = probe == "coordinate_plus_invariants"
        width = data.rows.shape[1]
        self._num_inputs = width + NUM_INVARIANTS if self._with_rows else NUM_INVARIANTS
        self._width = max(64, 2 * width) if self._with_rows else INVARIANT_WIDTH
        self._settings, self._seed = settings, seed
        with _seeded(seed):
            self._model = RowProbe(self._num_inputs, self._width, len(self.classes))

    def fit(self, tick: Tick) -> None:
        """Trains on the train rows; ticks at every update."""
        data, settings, model = self._data, self._settings, self._model
        inputs = self._inputs(data.train_rows)
        optimizer, generator = _optimizer(model, settings), torch.Generator().manual_seed(self._seed)
        for epoch in range(settings.epochs):
            order = torch.randperm(len(inputs), generator=generator)
            for start in range(0, len(inputs), settings.batch_rows):
                tick((epoch + start / len(inputs)) / settings.epochs)
                batch = order[start : start + settings.batch_rows]
                _step(optimizer, nn.functional.cross_entropy(model(inputs[batch]), data.train_classes[batch]))
        model.eval()

    @torch.no_grad()
    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks."""
        chunk = max(1, _SCORE_LOGITS // max(1, len(self.classes)))
        for positions in torch.split(torch.arange(len(self._data.score_rows)), chunk):
            logits = self._model(self._inputs(self._data.score_rows[positions]))
            yield positions.numpy(), logits.log_softmax(-1).numpy()

    def _inputs(self, rows: torch.Tensor) -> torch.Tensor:
        invariants = self._data.invariants[rows]
        return torch.cat([self._data.rows[rows], invariants], dim=1) if self._with_rows else invariants


class GraphArm:
    """An arm that reads whole frames."""

    def __init__(self, name: str, probe: str, data: ProbeData, settings: ProbeSettings, seed: int) -> None:
        del probe
        self.name, self.classes, self._data = name, data.classes, data
        self._windows = list(_windows(data.offsets))
        self._settings, self._seed = settings, seed
        with _seeded(seed):
            self._model = GraphProbe(len(self.classes))

    def fit(self, tick: Tick) -> None:
        """Trains on the train rows, whole frames at a time; ticks at every update."""
        settings, model = self._settings, self._model
        label = torch.full((len(self._data.rows),), _NO_CLASS)
        label[self._data.train_rows] = self._data.train_classes
        windows = [window for window in self._windows if (label[slice(*window)] != _NO_CLASS).any()]
        optimizer, generator = _optimizer(model, settings), torch.Generator().manual_seed(self._seed)
        for epoch in range(settings.epochs):
            order = [windows[i] for i in torch.randperm(len(windows), generator=generator)]
            num_read = 0
            for batch in _batches(order, settings.batch_rows):
                tick((epoch + num_read / len(windows)) / settings.epochs)
                num_read += len(batch)
                hidden, rows = self._hidden(model, batch)
                wanted = label[rows] != _NO_CLASS
                loss = nn.functional.cross_entropy(model.head(hidden[wanted]), label[rows][wanted])
                _step(optimizer, loss)
        model.eval()

    @torch.no_grad()
    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks of frames."""
        position = torch.full((len(self._data.rows),), -1)
        position[self._data.score_rows] = torch.arange(len(self._data.score_rows))
        chunk = max(_WINDOW_ROWS, min(8192, _SCORE_LOGITS // max(1, len(self.classes))))
        for batch in _batches([w for w in self._windows if (position[slice(*w)] >= 0).any()], chunk):
            hidden, rows = self._hidden(self._model, batch)
            wanted = position[rows] >= 0
            logits = self._model.head(hidden[wanted])
            yield position[rows][wanted].numpy(), logits.log_softmax(-1).numpy()

    def _hidden(self, model: GraphProbe, windows: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden rows [n, W] of the windows, padding removed, and their row numbers [n]."""
        longest = max(end - start for start, end in windows)
        starts, ends = torch.tensor(windows).unbind(1)
        index = starts[:, None] + torch.arange(longest)
        real = index < ends[:, None]
        index = torch.where(real, index, starts[:, None])
        rows = self._data.rows[index] * real.unsqueeze(-1)
        hidden = model.hidden(self._data.invariants[index], squared_gram_graph(rows))
        return hidden[real], index[real]


def _windows(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    for start, end in itertools.pairwise(offsets):
        for begin in range(start, end, _WINDOW_ROWS):
            yield begin, min(end, begin + _WINDOW_ROWS)


def _batches(windows: Sequence[tuple[int, int]], num_rows: int) -> Iterator[list[tuple[int, int]]]:
    """Windows whose padded size stays within `num_rows`, at least one a batch."""
    batch: list[tuple[int, int]] = []
    longest = 0
    for window in windows:
        longest = max(longest, window[1] - window[0])
        if batch and longest * (len(batch) + 1) > num_rows:
            yield batch
            batch, longest = [], window[1] - window[0]
        batch.append(window)
    if batch:
        yield batch


def _optimizer(model: nn.Module, settings: ProbeSettings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """A scope in which modules are initialised from this seed; the process's random state comes back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _arm_seed(view: TokenView, probe: str, restart: int) -> int:
    text = f"{view.seed}|{view.family}|{view.partition}|{probe}|{restart}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
