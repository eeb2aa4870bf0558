"""The deep probe: a transformer encoder over the rows of a frame that names the token of each row.

Linear to the width of a row, at least 512 and at most 1024; four pre-norm encoder layers with eight heads and a
feed-forward width of 2048; LayerNorm; a linear head. AdamW at 3e-4 with weight decay 1e-4, gradients clipped at 1, 50
epochs, no early stopping and no choice of an epoch. The encoder is told no positions: a frame is a set of rows.

It needs hours on a few cores where the nine arms need minutes, so no built-in plan runs it: name it in `attacks` and
set its budget under [deep_probe]. Frames longer than 256 rows are read in windows of 256.

Shapes: F frames, R rows, D width of a row, W width of the encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from auditor.arrays import Integers
from auditor.attacks.base import Assumes, Question
from auditor.attacks.latent_matching import even_sample
from auditor.attacks.parts.chunks import SCORE_LOGITS
from auditor.attacks.parts.probe_data import token_classes
from auditor.attacks.parts.windows import WINDOW_ROWS, Window, batches_of, windows_of
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import DeepProbeSettings
from auditor.progress import Progress, Tick
from auditor.views.token import TokenView

_HEADS = 8
_FEED_FORWARD = 2048
_NARROWEST, _WIDEST = 512, 1024
_NO_CLASS = -1


class DeepProbe:
    """Encoder over whole frames."""

    name = "deep_probe"
    question: Question = "token"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "four-layer, eight-head encoder probe (Privacy Failure in Split-LLM Training, positive control)"

    def run(self, view: TokenView, settings: DeepProbeSettings, progress: Progress) -> list[DeepArm]:
        """One arm for every restart, not yet fitted."""
        del progress
        classes = token_classes(view.train_tokens, 0)
        return [DeepArm(f"encoder/{number}", view, classes, settings, number) for number in range(settings.restarts)]


class Encoder(nn.Module):
    """Rows [F, R, D] -> hidden rows [F, R, W]; the head makes logits of those that are wanted."""

    def __init__(self, num_inputs: int, num_classes: int, settings: DeepProbeSettings) -> None:
        super().__init__()
        width = settings.width or max(_NARROWEST, min(_WIDEST, num_inputs - num_inputs % _HEADS))
        self.enter = nn.Linear(num_inputs, width)
        layer = nn.TransformerEncoderLayer(
            width, _HEADS, _FEED_FORWARD, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, settings.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, rows_FRD: torch.Tensor, is_padding_FR: torch.Tensor) -> torch.Tensor:
        """Hidden rows."""
        hidden: torch.Tensor = self.layers(self.enter(rows_FRD), src_key_padding_mask=is_padding_FR)
        return hidden


class DeepArm:
    """One encoder on one view."""

    def __init__(
        self, name: str, view: TokenView, classes: Integers, settings: DeepProbeSettings, restart: int
    ) -> None:
        self.name, self.classes = name, classes
        self._rows, self._score_rows = torch.from_numpy(view.rows), torch.from_numpy(view.score_rows)
        self._windows = windows_of(view.offsets.tolist())
        self._label = torch.full((len(view.rows),), _NO_CLASS)
        self._label[torch.from_numpy(view.train_rows)] = torch.from_numpy(np.searchsorted(classes, view.train_tokens))
        self._settings, self._seed = settings, _seed(view, restart)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self._model = Encoder(view.rows.shape[1], len(classes), settings)

    def fit(self, tick: Tick) -> None:
        """Trains on the train rows, whole frames at a time; ticks at every update."""
        settings, model = self._settings, self._model
        windows = [window for window in self._windows if (self._label[slice(*window)] != _NO_CLASS).any()]
        windows = [windows[i] for i in even_sample(len(windows), settings.max_train_frames or len(windows))]
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        generator = torch.Generator().manual_seed(self._seed)
        for epoch in range(settings.epochs):
            order = [windows[i] for i in torch.randperm(len(windows), generator=generator)]
            num_read = 0
            for batch in batches_of(order, settings.batch_rows):
                tick((epoch + num_read / len(windows)) / settings.epochs)
                num_read += len(batch)
                hidden, rows = self._hidden(batch)
                wanted = self._label[rows] != _NO_CLASS
                loss = nn.functional.cross_entropy(model.head(hidden[wanted]), self._label[rows][wanted])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()

    @torch.no_grad()
    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities over the classes of every score row, in chunks of frames."""
        position = torch.full((len(self._rows),), -1)
        position[self._score_rows] = torch.arange(len(self._score_rows))
        chunk = max(WINDOW_ROWS, min(8192, SCORE_LOGITS // max(1, len(self.classes))))
        for batch in batches_of([w for w in self._windows if (position[slice(*w)] >= 0).any()], chunk):
            hidden, rows = self._hidden(batch)
            wanted = position[rows] >= 0
            logits = self._model.head(hidden[wanted])
            yield position[rows][wanted].numpy(), logits.log_softmax(-1).numpy()

    def _hidden(self, windows: Sequence[Window]) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden rows [n, W] of the windows, padding removed, and their row numbers [n]."""
        starts, ends = torch.tensor(windows).unbind(1)
        index = starts[:, None] + torch.arange(int((ends - starts).max()))
        is_padding = index >= ends[:, None]
        index = torch.where(is_padding, starts[:, None], index)
        return self._model(self._rows[index], is_padding)[~is_padding], index[~is_padding]


def _seed(view: TokenView, restart: int) -> int:
    text = f"{view.seed}|{view.family}|{view.partition}|deep_probe|{restart}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
