"""Which rows carry a gradient at all: an exact zero says "this row bore no loss", so it is a decoy.

It needs no training, no label and no second frame. Adding noise to every row defeats it, which says nothing about the
partition: see row_norm.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.attacks.base import Assumes, Question
from auditor.channels import GRADIENT_ONLY
from auditor.progress import Progress
from auditor.views.units import UnitView


class GradientSupport:
    """Predicts that a unit is real when any value of its gradient is not zero."""

    name = "gradient_support"
    question: Question = "support"
    families: tuple[str, ...] = (GRADIENT_ONLY,)
    knowledge = "one captured gradient frame; no labels"
    assumes = Assumes()
    paper = "zero-support read of the returned gradient"

    def run(self, view: UnitView, settings: Any, progress: Progress) -> NDArray[np.bool_]:
        """Predicted real units [U]."""
        del settings, progress
        return np.asarray(view.norm > 0)
