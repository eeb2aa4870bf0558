"""Changes what it returns and watches the gradients: a node that is active, in front of an honest one.

A row that bears loss answers a change along d with a gradient that leans along d: the loss is curved. A decoy whose
gradient is zero, or drawn from elsewhere, has never seen the change and leans nowhere. So the reaction tells real rows
from decoys even where norms are alike; and noise that hides a gradient hides it only up to the amplitude.

Readings, all signed: the projection on the change, its cosine, the projection standardised within the frame, and a
logistic regression of the three on the units of train documents. Beside them, what the gradient adds about a token once
the change is known: a linear reading of forward row, gradient row and reaction together, and a small trained probe of
them, for what only their products tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from auditor.arrays import Integers
from auditor.attacks.base import Assumes, Question, UnitScores
from auditor.attacks.latent_probe import LatentProbe
from auditor.attacks.linear_probe import LinearProbe
from auditor.attacks.row_norm import fit_logistic
from auditor.channels import ACTIVE_PERTURBATION
from auditor.progress import Progress
from auditor.views.base import FloatArray
from auditor.views.reaction import ReactionView
from auditor.views.token import TokenView


class PerturbationResponse:
    """Regression of gradients on what was added to the returned rows."""

    name = "perturbation_response"
    question: Question = "reaction"
    families: tuple[str, ...] = (ACTIVE_PERTURBATION,)
    knowledge = "what it changed, rows of both hops; of the train documents which rows are real, and their tokens"
    assumes = Assumes(known_plaintext=True)
    paper = "active manipulation of returned activations"

    def run(self, view: ReactionView | TokenView, settings: Any, progress: Progress) -> Any:
        """Of reactions: scores of all units by each reading; none when the train units are of one class only.

        Of rows with their reactions beside them: the arms that name a token.
        """
        if isinstance(view, TokenView):
            one = replace(settings, probes=settings.probes[:1], restarts=1)
            return [*LinearProbe().run(view, settings, progress), *LatentProbe().run(view, one, progress)]
        if view.train_real.all() or not view.train_real.any():
            return []
        columns = np.stack([view.projection, view.cosine, _within_frame(view.projection, view.group)], axis=1)
        spread = columns[view.train_units].std(0)
        columns = columns / np.where(spread > 0, spread, 1.0)
        weights = fit_logistic(columns[view.train_units], view.train_real)
        return [
            UnitScores("projection", columns[:, 0]),
            UnitScores("cosine", columns[:, 1]),
            UnitScores("within_frame", columns[:, 2]),
            UnitScores("regression", np.asarray(columns @ weights[:-1])),
        ]


def _within_frame(values: FloatArray, group: Integers) -> FloatArray:
    """Values divided by the root mean square of their frame: not centred, so that a sign stays a sign."""
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    square = np.bincount(index, weights=values**2) / np.bincount(index)
    return np.asarray(values / np.sqrt(np.where(square > 0, square, 1.0))[index])
