"""What all views share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class NotMeasurableError(Exception):
    """A view cannot be made from this capture; the text is the reason that goes into the result."""


class DoesNotApplyError(NotMeasurableError):
    """The evidence is of another kind: there is nothing to find, and nothing is left open by it."""
