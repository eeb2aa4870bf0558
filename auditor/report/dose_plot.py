"""The plot of a dose ladder: how often a leak was found over the share of the carriers that had it, on a log scale.

No dose stands apart, left of the axis' break. One line a mode, each rung that was read with its exact interval. A rung
that was read in part, because a smaller dose is found, is a ring; one that was not read is a cross on the axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from auditor.report import svg

_LEFT, _TOP, _WIDTH, _HEIGHT = 62, 34, 380, 150
_APART = 46
_KINDS = ("first", "second")


def dose_plot(ladders: Sequence[Mapping[str, Any]], power_ratio: float) -> str:
    """Detection shares of the modes of one metric at one amplitude, each the tree of a Ladder with these coverages."""
    doses = [rung["coverage_ratio"] for rung in ladders[0]["rungs"] if rung["coverage_ratio"] > 0]
    low, high = math.log10(min(doses)), math.log10(max(doses))
    parts = [*_frame(doses, low, high, power_ratio)]
    for number, ladder in enumerate(ladders):
        kind, shift = _KINDS[number % len(_KINDS)], 5 * number
        read = [
            (_x(rung["coverage_ratio"], low, high) + shift, _y(rung["detected_ratio"]), rung)
            for rung in ladder["rungs"]
            if rung["num_readings"]
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, rung in read if rung["coverage_ratio"] > 0)
        parts.append(f'<polyline class="{"curve" if kind == "first" else kind}" points="{line}"/>')
        for x, y, rung in read:
            top, bottom = _y(rung["detected_upper_ratio"]), _y(rung["detected_lower_ratio"])
            parts.append(f'<line class="whisker" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
            part = "" if rung["detection"] in ("found", "missed") else " part"
            parts.append(f'<circle class="{kind}{part}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        unread = [rung["coverage_ratio"] for rung in ladder["rungs"] if not rung["num_readings"]]
        parts += [_cross(_x(coverage, low, high) + shift, kind) for coverage in unread]
        name = f"{ladder['mode']}, amplitude {ladder['amplitude_ratio']:g}"
        parts.append(f'<circle class="{kind}" cx="{_LEFT + 8 + 200 * number}" cy="12" r="5"/>')
        parts.append(svg.text(_LEFT + 18 + 200 * number, 16, name, "start"))
    title = f"share of repetitions in which {ladders[0]['metric']} finds a dose"
    return svg.drawing(_LEFT + _APART + _WIDTH + 16, _TOP + _HEIGHT + 46, title, parts)


def _cross(x: float, kind: str) -> str:
    """A rung that was not read."""
    y = _TOP + _HEIGHT
    return f'<path class="{kind} unread" d="M{x - 3:.1f},{y - 3} l6,6 m0,-6 l-6,6"/>'


def _frame(doses: Sequence[float], low: float, high: float, power_ratio: float) -> list[str]:
    base, right = _TOP + _HEIGHT, _LEFT + _APART + _WIDTH
    power = _y(power_ratio)
    return [
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{right}" y2="{base}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{base}"/>',
        f'<line class="threshold" x1="{_LEFT}" y1="{power:.1f}" x2="{right}" y2="{power:.1f}"/>',
        *(svg.text(_LEFT - 8, _y(share) + 4, f"{share:.0%}", "end") for share in (0, 0.5, 1)),
        svg.text(_LEFT + 12, base + 18, "none", "middle"),
        *(svg.text(_x(dose, low, high), base + 18, f"{dose:.3g}", "middle") for dose in doses),
        svg.text(_LEFT + _APART + _WIDTH / 2, base + 38, "coverage (log scale)", "middle"),
    ]


def _x(coverage: float, low: float, high: float) -> float:
    if coverage == 0:
        return _LEFT + 12
    return _LEFT + _APART + (_WIDTH - 20) * (math.log10(coverage) - low) / (high - low or 1.0)


def _y(share: float) -> float:
    return _TOP + _HEIGHT * (1 - share)
