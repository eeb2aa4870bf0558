"""A small trained arm over features that an attack computed of every row: LayerNorm, Linear, GELU, Linear.

The schedule is that of the latent probe: AdamW, epochs as the plan says, no early stopping, one seed an arm.
It trains as a stack of one (stacked.py), whose head takes about two thirds of the time that autograd takes.

Shapes: M rows, K features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.arrays import Integers
from auditor.attacks.parts.chunks import log_probability_chunks
from auditor.attacks.parts.invariants import standardise
from auditor.attacks.parts.probes import INVARIANT_WIDTH, RowProbe
from auditor.attacks.parts.stacked import StackedRows, train_step, write_back
from auditor.plan import ProbeSettings
from auditor.progress import Tick
from auditor.views.token import TokenView


class FeatureArm:
    """Learns tokens from features [M, K] of the view's rows."""

    def __init__(
        self,
        name: str,
        features_MK: torch.Tensor,
        view: TokenView,
        classes: Integers,
        settings: ProbeSettings,
        seed: int,
    ) -> None:
        self.name, self.classes = name, classes
        features_MK = standardise(features_MK)
        place = np.searchsorted(classes, view.train_tokens).clip(max=len(classes) - 1)
        known = classes[place] == view.train_tokens
        self._train = features_MK[torch.from_numpy(view.train_rows[known])]
        self._train_classes = torch.from_numpy(place[known])
        self._score = features_MK[torch.from_numpy(view.score_rows)]
        self._settings, self._seed, self.epochs = settings, seed, settings.epochs_over(len(self._train))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = RowProbe(features_MK.shape[1], max(INVARIANT_WIDTH, 2 * features_MK.shape[1]), len(classes))

    def fit(self, tick: Tick) -> None:
        """Trains on the train rows; ticks at every update."""
        settings, stack = self._settings, StackedRows([self._model])
        optimizer = torch.optim.AdamW(stack.parameters(), lr=settings.learning_rate, fused=True)
        generator = torch.Generator().manual_seed(self._seed)
        for epoch in range(self.epochs):
            order = torch.randperm(len(self._train), generator=generator)
            for start in range(0, len(order), settings.batch_rows):
                tick((epoch + start / len(order)) / self.epochs)
                batch = order[start : start + settings.batch_rows]
                train_step(stack, optimizer, stack.hidden(self._train[batch]), self._train_classes[batch])
        write_back(stack)

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks."""
        return log_probability_chunks(len(self._score), len(self.classes), lambda part: self._model(self._score[part]))
