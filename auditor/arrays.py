"""Names of the arrays that everything here hands on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
