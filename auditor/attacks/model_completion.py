"""Finishes what the untrusted node returned: the public model says what token comes next.

    public_tail   the public layers after the delegated ones and lm_head, on the returned rows as they are; only where
                  rows are positions of a text (a stack of real layers)
    ridge_tail    a ridge regression from returned rows, with their invariants, to the public model's last hidden states
                  of known plaintext, then the public lm_head; it needs no order, no width and no weights in common
    linear        a linear discriminant from returned rows and invariants to tokens, learned on the train rows alone

Every arm names tokens that the train rows hold: the domain is known. A private decoder, a rotation and noise stand
between the first two and the text, or do not.

Shapes: M rows of the view, I features, H hidden width of the public model, S score rows, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.arrays import Integers
from auditor.attacks.base import Assumes, Question, TokenArm
from auditor.attacks.linear_probe import LinearProbe
from auditor.attacks.parts.chunks import SCORE_LOGITS
from auditor.attacks.parts.invariants import row_invariants, standardise
from auditor.attacks.parts.probe_data import token_classes
from auditor.channels import RESPONSE_SIDE
from auditor.plan import ProbeSettings
from auditor.progress import Progress, Tick
from auditor.public_model import PublicModel
from auditor.views.response import ResponseView
from auditor.views.token import scaled

PUBLIC_TAIL, RIDGE_TAIL = "public_tail", "ridge_tail"
_PENALTIES = (1e-3, 1e-1, 1e1)  # times the mean eigenvalue of the features
_HELD_OUT_TEXTS = 5  # every fifth text decides the penalty


class ModelCompletion:
    """The arms that the view allows."""

    name = "model_completion"
    question: Question = "response"
    families: tuple[str, ...] = (RESPONSE_SIDE,)
    knowledge = "returned rows; the public model; texts of the train documents with the rows that they are in"
    assumes = Assumes(known_plaintext=True, public_weights=True)
    paper = "model completion (Fu et al., Label Inference Attacks Against Vertical Federated Learning, 2022)"

    def run(self, view: ResponseView, settings: ProbeSettings, progress: Progress) -> list[TokenArm]:
        """Arms, not yet fitted."""
        classes = token_classes(view.train_tokens, settings.max_classes)
        arms: list[TokenArm] = []
        if view.model is not None and view.in_order and view.rows.shape[1] == view.model.width:
            arms.append(_PublicTail(view, view.model, classes))
        if view.model is not None and view.texts:
            arms.append(_RidgeTail(view, view.model, classes))
        linear = LinearProbe().run(view.with_rows(scaled(view.rows)), settings, progress)
        for arm in linear:
            arm.name = f"linear/{arm.name}"
        return [*arms, *linear]


class _TailArm:
    """Reads tokens from last hidden states by the public lm_head."""

    def __init__(self, name: str, view: ResponseView, model: PublicModel, classes: Integers) -> None:
        self.name, self.classes = name, classes
        self._view, self._model = view, model
        self._normed_SH = torch.zeros(0)

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Log-probabilities of the classes on every score row, in chunks."""
        chunk = max(1, SCORE_LOGITS // len(self.classes))
        for part in torch.split(torch.arange(len(self._view.score_rows)), chunk):
            yield part.numpy(), self._model.log_probabilities(self._normed_SH[part], self.classes).numpy()


class _PublicTail(_TailArm):
    def __init__(self, view: ResponseView, model: PublicModel, classes: Integers) -> None:
        super().__init__(PUBLIC_TAIL, view, model, classes)

    def fit(self, tick: Tick) -> None:
        """Runs the public tail over the sequences that hold score rows; nothing is learned."""
        tick(0.0)
        view = self._view
        item_of_row = np.searchsorted(view.offsets, np.arange(len(view.rows)), "right") - 1
        items = np.unique(item_of_row[view.score_rows])
        rows = [torch.from_numpy(view.rows[view.offsets[item] : view.offsets[item + 1]]) for item in items]
        normed = torch.cat(self._model.finish(rows))
        first = np.cumsum([0, *(len(part) for part in rows)])[np.searchsorted(items, item_of_row[view.score_rows])]
        place = view.score_rows - view.offsets[item_of_row[view.score_rows]]
        self._normed_SH = normed[torch.from_numpy(first + place)]


class _RidgeTail(_TailArm):
    def __init__(self, view: ResponseView, model: PublicModel, classes: Integers) -> None:
        super().__init__(RIDGE_TAIL, view, model, classes)

    def fit(self, tick: Tick) -> None:
        """Regresses the public model's last hidden states on the rows of known texts."""
        view = self._view
        rows = torch.from_numpy(np.ascontiguousarray(scaled(view.rows)))
        invariants = standardise(row_invariants(rows, [int(offset) for offset in view.offsets]))
        features_MI = torch.cat([rows, invariants, torch.ones(len(rows), 1)], dim=1).double()
        tick(0.1)
        targets = [hidden.double() for hidden in self._model.last_hidden([text.tokens for text in view.texts])]
        inputs = [features_MI[torch.from_numpy(text.rows)] for text in view.texts]
        tick(0.9)
        penalty = _best_penalty(inputs, targets)
        weights_IH = _ridge(torch.cat(inputs), torch.cat(targets), penalty)
        self._normed_SH = (features_MI[torch.from_numpy(view.score_rows)] @ weights_IH).float()


def _best_penalty(inputs: list[torch.Tensor], targets: list[torch.Tensor]) -> float:
    """The penalty with the least error on held-out known texts; the middle one where there are too few."""
    if len(inputs) < 2 * _HELD_OUT_TEXTS:
        return _PENALTIES[1]
    fit = [number for number in range(len(inputs)) if number % _HELD_OUT_TEXTS]
    held_inputs, held_targets = torch.cat(inputs[::_HELD_OUT_TEXTS]), torch.cat(targets[::_HELD_OUT_TEXTS])
    fit_inputs, fit_targets = torch.cat([inputs[n] for n in fit]), torch.cat([targets[n] for n in fit])

    def error(penalty: float) -> float:
        return float((held_inputs @ _ridge(fit_inputs, fit_targets, penalty) - held_targets).square().mean())

    return min(_PENALTIES, key=error)


def _ridge(inputs_NI: torch.Tensor, targets_NH: torch.Tensor, penalty: float) -> torch.Tensor:
    """Weights [I, H] of least squares with a penalty on their size."""
    gram_II = inputs_NI.T @ inputs_NI
    shrink = penalty * float(gram_II.diagonal().mean())
    damped_II = gram_II + shrink * torch.eye(len(gram_II), dtype=gram_II.dtype)
    weights_IH: torch.Tensor = torch.linalg.solve(damped_II, inputs_NI.T @ targets_NH)
    return weights_IH
