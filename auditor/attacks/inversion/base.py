"""What an inversion attack hands to its scorer.

An attack is a frozen dataclass whose fields are its published parameters; a plan changes them by name. It reads a
PromptView and guesses the token at every position.

Shapes: T positions of one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Integers

NO_GUESS = -1


@dataclass(frozen=True, eq=False)
class Recovered:
    """The guess for one text.

    `tokens` [T + 1]: the token at every position, and last the one that follows; NO_GUESS where the attack names none.
    `certainty` [T + 1] in 0 to 1, where the attack tells one. `seconds` are spent on this text alone; what was spent
    once for all texts, such as fitting an inverter, goes into the details of the first as `fit_seconds`.
    """

    tokens: Integers
    seconds: float
    certainty: NDArray[np.float64] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
