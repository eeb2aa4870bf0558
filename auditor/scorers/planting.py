"""Plants a leak of known size into a copy of a view, to show that an attack would have found it.

One fixed random unit code a token. A chosen row becomes norm * normalise(sqrt(1 - a^2) * unit + a * code): its norm
stays, its direction now tells the token. The chosen rows are the first round(coverage * N) of one fixed permutation,
so larger doses contain smaller ones. A dose of zero gives the same rows, bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from auditor.rows import Rows

_CHUNK_ROWS = 1 << 16


def plant(rows: Rows, tokens: NDArray[np.int64], *, coverage_ratio: float, amplitude_ratio: float, seed: int) -> Rows:
    """A dosed copy of rows [M, W]. Rows without a token (-1) are never dosed."""
    generator = np.random.default_rng([seed, 1])
    dosed = rows.copy()
    candidates = np.flatnonzero(tokens >= 0)
    order = generator.permutation(candidates)
    chosen = np.sort(order[: round(coverage_ratio * len(candidates))]) if amplitude_ratio > 0 else order[:0]
    classes, index = np.unique(tokens[candidates], return_inverse=True)
    codes = _unit(np.random.default_rng([seed, 2]).standard_normal((len(classes), rows.shape[1])).astype(np.float32))
    code_of_row = np.full(len(rows), -1)
    code_of_row[candidates] = index.reshape(-1)
    for start in range(0, len(chosen), _CHUNK_ROWS):
        part = chosen[start : start + _CHUNK_ROWS]
        norm = np.linalg.norm(rows[part], axis=1, keepdims=True)
        keep = np.float32(np.sqrt(1 - amplitude_ratio**2))
        mixed = keep * _unit(rows[part]) + np.float32(amplitude_ratio) * codes[code_of_row[part]]
        dosed[part] = norm * _unit(mixed)
    return dosed


def _unit(rows: Rows) -> Rows:
    length: Rows = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return rows / length
