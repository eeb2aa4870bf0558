"""Several runs (seeds, captures) of one effect combined: fixed effect, random effects, and what a new run may read.

With effects y_i and standard errors s_i, i = 1..k, weights w_i = 1 / s_i^2 and their weighted mean y:

    Q            sum w_i (y_i - y)^2;  I^2 = max(0, (Q - (k - 1)) / Q)
    tau^2        max(0, (Q - (k - 1)) / (sum w_i - sum w_i^2 / sum w_i))      DerSimonian and Laird 1986
    mean         weights 1 / (s_i^2 + tau^2), standard error 1 / sqrt(sum of weights), normal interval
    Hartung-Knapp  the same mean, its error from the spread of the runs, t with k - 1 degrees (Hartung, Knapp 2001)
    prediction   mean +- t_{k-2} sqrt(tau^2 + error^2): where the effect of another run lies (Higgins et al. 2009)

The normal interval is too narrow with few runs. Hartung-Knapp is right on average, but with few runs that happen to
agree it becomes narrower than the normal one: its scale is then cut at 1 here ("modified"), as its authors suggest;
`scale_ratio` is the uncut one. Effects, errors and intervals are in one unit, that of the input; `tau_squared` in its
square.

Refused: fewer than two runs; errors that are not positive; numbers that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy import stats

from auditor.statistics.clusters import FloatArray
from auditor.statistics.units import check_ratio
from splitwire.errors import SettingsError

PUBLISHED_Z = 1.959964
"""Quantile with which the published standard errors were made from 95 % intervals."""


@dataclass(frozen=True)
class Interval:
    """Two-sided, at level 1 - alpha."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Combined:
    """The combination of k runs. `prediction` is None with two runs: one cannot tell how runs differ."""

    num_runs: int
    fixed: float
    mean: float
    standard_error: float
    interval: Interval
    hartung_knapp_error: float
    hartung_knapp: Interval
    hartung_knapp_modified: Interval
    scale_ratio: float
    prediction: Interval | None
    q: float
    tau_squared: float
    i_squared_ratio: float


def standard_error_from_interval(lower: float, upper: float, z: float = PUBLISHED_Z) -> float:
    """Standard error of an estimate from its symmetric interval of half-width z errors."""
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper and z > 0):
        raise SettingsError(
            f"[{lower:g}, {upper:g}] is no interval of a standard error", remedy="give lower < upper, both finite"
        )
    return (upper - lower) / (2 * z)


def random_effects(effects: Sequence[float], standard_errors: Sequence[float], *, alpha: float = 0.05) -> Combined:
    """Combines runs by their effects and standard errors; intervals are two-sided at 1 - alpha."""
    check_ratio(alpha, "alpha", open_interval=True)
    effects_K, variances_K = _checked(effects, standard_errors)
    num_runs = len(effects_K)
    weights_K = 1 / variances_K
    fixed = float(weights_K @ effects_K / weights_K.sum())
    q = float(weights_K @ (effects_K - fixed) ** 2)
    excess = q - (num_runs - 1)
    tau_squared = max(0.0, excess / float(weights_K.sum() - (weights_K**2).sum() / weights_K.sum()))
    weights_K = 1 / (variances_K + tau_squared)
    mean, error = float(weights_K @ effects_K / weights_K.sum()), float(1 / np.sqrt(weights_K.sum()))
    scale = float(weights_K @ (effects_K - mean) ** 2) / (num_runs - 1)
    t = float(stats.t.ppf(1 - alpha / 2, num_runs - 1))
    prediction = None
    if num_runs > 2:
        wide = float(stats.t.ppf(1 - alpha / 2, num_runs - 2)) * math.sqrt(tau_squared + error**2)
        prediction = _around(mean, wide)
    return Combined(
        num_runs=num_runs,
        fixed=fixed,
        mean=mean,
        standard_error=error,
        interval=_around(mean, NormalDist().inv_cdf(1 - alpha / 2) * error),
        hartung_knapp_error=math.sqrt(scale) * error,
        hartung_knapp=_around(mean, t * math.sqrt(scale) * error),
        hartung_knapp_modified=_around(mean, t * math.sqrt(max(1.0, scale)) * error),
        scale_ratio=scale,
        prediction=prediction,
        q=q,
        tau_squared=tau_squared,
        i_squared_ratio=max(0.0, excess / q) if q > 0 else 0.0,
    )


def _around(centre: float, half: float) -> Interval:
    return Interval(centre - half, centre + half)


def _checked(effects: Sequence[float], standard_errors: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """Effects [K] and variances [K]."""
    if len(effects) != len(standard_errors) or len(effects) < 2:
        raise SettingsError(
            f"{len(effects)} effects with {len(standard_errors)} standard errors cannot be combined",
            remedy="give one standard error an effect, and at least two runs",
        )
    for number, (effect, error) in enumerate(zip(effects, standard_errors, strict=True)):
        if not (math.isfinite(effect) and math.isfinite(error) and error > 0):
            raise SettingsError(
                f"run {number} has effect {effect:g} and standard error {error:g}",
                remedy="use finite numbers, and an error above 0",
            )
    return np.array(effects, np.float64), np.array(standard_errors, np.float64) ** 2
