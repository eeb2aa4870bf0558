"""Evidence that may be looked at after every observation: e-processes for the mean of bounded values.

    E_t(m) = mean over rates r of prod_{i <= t} (1 + r (x_i - m) / m),     x_i in [0, 1], r in (0, 1)

Where the mean of every x_i, given all that came before it, is at most m, E_t(m) is a nonnegative supermartingale that
starts at 1. So the chance that it EVER reaches 1 / alpha is at most alpha (Ville 1939; betting of Waudby-Smith and
Ramdas, "Estimating means of bounded random variables by betting", 2024): one may look as often as one likes, for as
long as one likes, and values of one frame may depend on those of earlier ones in any way. The smaller of two such
processes tests that at least one of their means is at most m.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from auditor.statistics.clusters import FloatArray

_RATES: FloatArray = np.geomspace(0.005, 0.95, 16)
_NUM_LIMITS = 128
_MOST_WAITING = 32


class BettingTest:
    """Tests "the mean is at most `limit`" for values in [low, high], and bounds the mean from below.

    `lower` is the largest limit of a grid that was refuted: a lower confidence bound that holds at all times at once.
    """

    def __init__(self, limit: float, alpha: float, *, low: float = 0.0, high: float = 1.0) -> None:
        self._low, self._span = low, high - low
        self._needed = -math.log(alpha)
        self._limit = self._scale(limit)
        self._log_L = np.zeros(len(_RATES))
        self._log_best = 0.0
        self._grid_M: FloatArray = np.linspace(0, 1, _NUM_LIMITS, endpoint=False)[1:]
        self._log_ML = np.zeros((len(self._grid_M), len(_RATES)))
        self._waiting: list[float] = []
        self._lower = 0.0
        self.num_values = 0
        self.sum_values = 0.0

    @property
    def mean(self) -> float | None:
        """Mean of all values so far."""
        return self.sum_values / self.num_values if self.num_values else None

    @property
    def lower(self) -> float | None:
        """Lower confidence bound of the mean; None before the first value."""
        if not self.num_values:
            return None
        self._bound()
        return self._low + self._span * self._lower

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of E_t(limit)."""
        return float(_log_mean(self._log_L))

    @property
    def is_refuted(self) -> bool:
        """Whether the evidence ever reached 1 / alpha."""
        return self._log_best >= self._needed

    def add(self, value: float) -> None:
        """Takes the next value; what lies outside [low, high] is cut to it."""
        scaled = min(1.0, max(0.0, self._scale(value)))
        self.num_values += 1
        self.sum_values += self._low + scaled * self._span
        self._log_L += np.log1p(_RATES * ((scaled - self._limit) / self._limit))
        self._log_best = max(self._log_best, self.log_evidence)
        self._waiting.append(scaled)
        if len(self._waiting) >= _MOST_WAITING:
            self._bound()

    def _bound(self) -> None:
        """Brings the grid up to date."""
        if not self._waiting:
            return
        step_PM = np.array(self._waiting)[:, None] / self._grid_M - 1
        self._log_ML += np.log1p(_RATES * step_PM[:, :, None]).sum(0)
        self._waiting.clear()
        refuted = self._grid_M[_log_mean(self._log_ML) >= self._needed]
        if len(refuted):
            self._lower = max(self._lower, float(refuted.max()))

    def _scale(self, value: float) -> float:
        return (value - self._low) / self._span


def _log_mean(logs: FloatArray) -> Any:
    """Logarithm of the mean over the last axis of exp(logs)."""
    peak = logs.max(-1)
    return peak + np.log(np.exp(logs - peak[..., None]).mean(-1))
