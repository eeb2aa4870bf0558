"""Tells documents trained on from documents held out, by how the node's own weights take them.

Transformer stack: a candidate text goes through the public layers, the snapshotted ones and the public tail. Training
lowers the loss of what it was done on more than that of other text; the loss before training calibrates how hard a text
is (Watson et al. 2022).

    loss_drop    loss under the first weights less that under the last
    loss         loss under the last weights
    learned      logistic regression on both and on the largest drop of a token, fitted on known candidates

Gram stack: candidates are frames. A surrogate reads them before and after training; nothing tells its private loss, so
the score is what changed.

    change       how far the last weights move a frame from where the first ones put it
    surrogate    regression on that, on residuals before and after, and on the gradient of the residual: its length and
                 its cosine with the way that the weights went
    frame        regression on norms and cosines of the frame itself: needs no weights
    all          both

Shapes: C candidates, F frames or texts, R rows, D width, B texts of one batch, T positions, H hidden width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from auditor.arrays import Integers
from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.attacks.parts.measures import Measures, mean_by_owner
from auditor.attacks.parts.surrogate import Surrogate, parameters_of
from auditor.channels import MEMBERSHIP_PROPERTY
from auditor.progress import Progress, silent
from auditor.public_model import PublicModel
from auditor.views.base import FloatArray
from auditor.views.membership import MembershipView, State
from splitwire.backbone import MiddleModel
from splitwire.errors import BundleError

_BATCH_TEXTS = 16
_SMALLEST = 1e-12
_TEXT_READINGS = {"loss_drop": (1,), "loss": (0,), "learned": (0, 1, 2)}
_FRAME_READINGS = {"change": (0,), "surrogate": (0, 1, 2, 3, 4), "frame": (5, 6, 7, 8), "all": tuple(range(9))}


class Membership:
    """Members by the snapshots' reaction to candidates."""

    name = "membership"
    question: Question = "membership"
    families: tuple[str, ...] = (MEMBERSHIP_PROPERTY,)
    knowledge = (
        "first and last snapshot of the node's weights; candidate texts and the public model (transformer stack), or "
        "evaluation frames of the candidates (gram stack); which train documents are members"
    )
    assumes = Assumes(known_plaintext=True, public_weights=True, auxiliary_text=True)
    paper = "difficulty-calibrated membership inference (Watson et al. 2022); TPR at low FPR (Carlini et al. 2022)"

    def run(self, view: MembershipView, settings: Any, progress: Progress) -> list[UnitScores]:
        """Scores of all candidates [C] by each reading."""
        del settings
        return self.measure(view, progress).scores()

    def measure(self, view: MembershipView, progress: Progress = silent) -> Measures:
        """The costly part: what the snapshots do to the candidates."""
        if view.model is None:
            return _as_measures(view, _frame_measures(view, _surrogate(view), None, progress), _FRAME_READINGS)
        return _as_measures(view, _measure_texts(view, view.model, progress), _TEXT_READINGS)

    def measure_after(self, view: MembershipView, source: Integers, amplitude_ratio: float) -> Measures:
        """Measures of frames where each candidate meets last weights of its own: those after one more step of the
        node's optimizer, on candidate `source` [C], of this share of the way that training moved the weights.
        """
        surrogate = _surrogate(view)
        steps_CP = surrogate.own_steps(view.frames, view.owner, view.num_candidates)
        moved = amplitude_ratio * steps_CP[source][view.owner]
        return _as_measures(view, _frame_measures(view, surrogate, moved, silent), _FRAME_READINGS)


def _as_measures(view: MembershipView, rows: FloatArray, readings: dict[str, tuple[int, ...]]) -> Measures:
    return Measures(mean_by_owner(rows, view.owner, view.num_candidates), readings, view.known, view.known_member)


@torch.no_grad()
def _measure_texts(view: MembershipView, model: PublicModel, progress: Progress) -> FloatArray:
    """Loss after (negative), drop, largest drop of a token, of every text [F, 3]."""
    with _fitting():
        first, last = (_with_weights(model.middle, state, view.facts) for state in (view.start, view.end))
    rows = np.zeros((len(view.texts), 3), dtype=np.float64)
    for done, numbers in enumerate(_batches(view.texts)):
        progress("candidates", done * _BATCH_TEXTS, len(view.texts))
        ids_BT = torch.from_numpy(np.stack([view.texts[n] for n in numbers]))
        hidden_BTH = model.head(ids_BT[:, :-1])
        before_BT, after_BT = (_losses(model, middle(hidden_BTH), ids_BT[:, 1:]) for middle in (first, last))
        drop_BT = before_BT - after_BT
        rows[numbers] = torch.stack([-after_BT.mean(1), drop_BT.mean(1), drop_BT.amax(1)], dim=1).double().numpy()
    return rows


@contextmanager
def _fitting() -> Iterator[None]:
    """BundleError where the untrusted node's tensors do not fit the stack that it names."""
    try:
        yield
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError):
        raise BundleError(
            "the snapshots do not fit the stack that their manifest names", remedy="snapshot again"
        ) from None


def _batches(texts: Any) -> Iterator[list[int]]:
    """Numbers of texts of one length, a few at a time."""
    by_length: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        by_length.setdefault(len(text), []).append(number)
    for numbers in by_length.values():
        for start in range(0, len(numbers), _BATCH_TEXTS):
            yield numbers[start : start + _BATCH_TEXTS]


def _losses(model: PublicModel, returned_BTH: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Cross-entropy [B, T] of the public tail over returned rows."""
    logits = model.tail.logits(model.tail(returned_BTH)).float()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels_BT, reduction="none")


def _with_weights(middle: MiddleModel, state: State, facts: dict[str, Any]) -> MiddleModel:
    """A copy of the delegated layers with the snapshot's parameters, or with its adapters merged in."""
    own = copy.deepcopy(middle).float()
    tensors = parameters_of(state)
    parameters = dict(own.body.named_parameters())
    with torch.no_grad():
        for name, value in tensors.items():
            if name in parameters:
                parameters[name].copy_(torch.from_numpy(value))
            elif ".lora_A." in name:
                target = parameters[f"{name.partition('.lora_A.')[0]}.weight"]
                down, up = torch.from_numpy(value), torch.from_numpy(tensors[name.replace(".lora_A.", ".lora_B.")])
                change = float(facts["lora_alpha"]) / float(facts["lora_rank"]) * (up @ down)
                target.add_(change.T if _is_transposed(own, name) else change)
    return own


def _is_transposed(middle: MiddleModel, name: str) -> bool:
    """GPT-2's layers hold their weights the other way round."""
    module = middle.body.get_submodule(name.partition(".lora_A.")[0])
    return not isinstance(module, torch.nn.Linear)


def _frame_measures(
    view: MembershipView, surrogate: Surrogate, moved: FloatArray | None, progress: Progress
) -> FloatArray:
    """Measures of every frame [F, 9]: five of the surrogate's reaction, four of the frame itself."""
    shapes = [_shape(np.asarray(frame, dtype=np.float64)) for frame in view.frames]
    return np.concatenate([surrogate.reactions(view.frames, moved, progress), np.array(shapes)], axis=1)


def _surrogate(view: MembershipView) -> Surrogate:
    with _fitting():
        return Surrogate(view.facts, view.start, view.end)


def _shape(rows_RD: FloatArray) -> list[float]:
    """Mean and spread of log norms, mean absolute cosine, share of the largest eigenvalue of the Gram matrix."""
    norms = np.maximum(np.linalg.norm(rows_RD, axis=1), _SMALLEST)
    unit_RD = rows_RD / norms[:, None]
    cosines = np.abs(unit_RD @ unit_RD.T)
    values = np.linalg.svd(unit_RD, compute_uv=False) ** 2
    others = cosines.sum() - np.trace(cosines)
    pairs = max(1, len(norms) * (len(norms) - 1))
    return [
        float(np.log(norms).mean()),
        float(np.log(norms).std()),
        float(others / pairs),
        float(values[0] / values.sum()),
    ]
