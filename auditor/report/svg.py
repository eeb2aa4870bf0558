"""Plots as inline SVG text: no script, no outside reference, colours from the page's own variables.

Only numbers and names of the program go in; the page marks what these functions return as safe, so every text passes
through `escape`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH = 640
_LEFT, _RIGHT = 250, 24
_ROW = 30
_PLOT_HEIGHT = 180
_MOST_TICKS = 6
_MOST_LETTERS = 34
"""Of a label beside a plot; a longer one is set narrower."""
_STATE_CLASS = {"pass": "pass", "fail": "fail", "inconclusive": "open"}


def forest(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a check: value, interval and ceiling on one scale. Rows: label, value, lower, upper, ceiling, state."""
    if not rows:
        return ""
    values = [v for row in rows for v in (row["value"], row["lower"], row["upper"], row["ceiling"]) if v is not None]
    low, high = _padded(min(values), max(values))
    height = _ROW * len(rows) + 34
    parts = [_axis(low, high, height - 26)]
    for number, row in enumerate(rows):
        parts.append(_forest_row(row, 18 + _ROW * number, low, high))
    return drawing(_WIDTH, height, "checks against their ceilings", parts)


def histogram(data: Mapping[str, Any]) -> str:
    """Two overlaid histograms of log10 norm, real units and decoys, each scaled to its own total."""
    if not data:
        return ""
    edges, real, decoy = data["log10_edges"], data["real"], data["decoy"]
    shares = [_shares(real), _shares(decoy)]
    top = max(max(shares[0], default=0), max(shares[1], default=0)) or 1
    left, width, base = 44, _WIDTH - 60, _PLOT_HEIGHT
    step = width / max(1, len(real))
    ends = edges[0], edges[-1]
    reach = ends[1] - ends[0] or 1.0
    parts = []
    for name, heights in zip(("real", "decoy"), shares, strict=True):
        bars = "".join(
            f'<rect x="{left + i * step:.1f}" y="{base - 150 * h / top:.1f}" width="{max(step - 1, 1):.1f}" '
            f'height="{150 * h / top:.1f}"/>'
            for i, h in enumerate(heights)
        )
        parts.append(f'<g class="{name}">{bars}</g>')
    parts += [
        f'<line class="axis" x1="{left}" y1="{base}" x2="{left + width}" y2="{base}"/>',
        *(_tick(left + width * (math.log10(tick) - edges[0]) / reach, base, tick) for tick in log_ticks(*ends)),
        text(left + width / 2, base + 34, "norm (log scale)", "middle"),
        *_legend((("real", "real"), ("decoy", "decoys"))),
        *_zeros(data, left),
    ]
    return drawing(_WIDTH, base + 44, "norms of real units and decoys", parts)


def support_map(frames: Sequence[Mapping[str, int]]) -> str:
    """One line a frame, one cell a unit, real ones left and decoys right: filled where the gradient is not zero.

    Within either side cells are sorted, as only their numbers are known.
    """
    if not frames:
        return ""
    most = [max(frame[f"{side}_nonzero"] + frame[f"{side}_zero"] for frame in frames) for side in ("real", "decoy")]
    left, gap, line = 62, 22, 15
    step = min(14.0, (_WIDTH - left - gap - 8) / max(1, sum(most)))
    starts = (left, left + step * most[0] + gap)
    parts = [
        text(starts[0], 14, f"real ({most[0]})", "start"),
        text(starts[1], 14, f"decoys ({most[1]})", "start"),
    ]
    for number, frame in enumerate(frames):
        y = 22 + line * number
        parts.append(text(left - 8, y + 10, f"frame {number + 1}", "end"))
        for side, start in zip(("real", "decoy"), starts, strict=True):
            filled, empty = frame[f"{side}_nonzero"], frame[f"{side}_zero"]
            parts.append(_cells(side, start, y, step, range(filled)))
            parts.append(_cells("empty", start, y, step, range(filled, filled + empty)))
    height = 22 + line * len(frames) + 24
    parts += [
        _cells("real", left, height - 16, 14, range(1)),
        _cells("decoy", left + 15, height - 16, 14, range(1)),
        text(left + 34, height - 6, "gradient is not zero", "start"),
        _cells("empty", left + 190, height - 16, 14, range(1)),
        text(left + 210, height - 6, "every value of the gradient is exactly zero", "start"),
    ]
    return drawing(_WIDTH, height, "which rows of the first frames have a gradient", parts)


def roc(points: Sequence[Sequence[float]]) -> str:
    """The ROC curve over the diagonal."""
    if not points:
        return ""
    size, left, top = 220, 44, 10
    path = " ".join(f"{left + size * x:.1f},{top + size * (1 - y):.1f}" for x, y in points)
    parts = [
        f'<rect class="frame" x="{left}" y="{top}" width="{size}" height="{size}"/>',
        f'<line class="ceiling" x1="{left}" y1="{top + size}" x2="{left + size}" y2="{top}"/>',
        f'<polyline class="curve" points="{path}"/>',
        text(left + size / 2, top + size + 18, "false positive ratio", "middle"),
        _upright(left - 12, top + size / 2, "true positive ratio"),
    ]
    return drawing(left + size + 16, top + size + 28, "ROC curve of real units against decoys", parts)


def arms(data: Mapping[str, Any]) -> str:
    """Accuracy of every arm beside the constant guesser."""
    entries = data["arms"]
    base = data["baseline_correct"] / data["total_rows"]
    high = max([base, *(arm["accuracy_ratio"] for arm in entries)]) * 1.15 or 1.0
    height = 22 * len(entries) + 40
    span = _WIDTH - _LEFT - _RIGHT
    parts = []
    for number, arm in enumerate(entries):
        y, kind = 10 + 22 * number, "idle" if arm["degenerate"] else "bar"
        length = span * arm["accuracy_ratio"] / high
        parts += [
            text(_LEFT - 8, y + 12, arm["name"], "end"),
            f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{length:.1f}" height="15"/>',
            text(_LEFT + length + 5, y + 12, f"{100 * arm['accuracy_ratio']:.2f} %", "start"),
        ]
    x = _LEFT + span * base / high
    parts += [
        f'<line class="ceiling" x1="{x:.1f}" y1="4" x2="{x:.1f}" y2="{height - 26}"/>',
        text(x, height - 10, f"constant guesser {100 * base:.2f} %", "middle"),
    ]
    return drawing(_WIDTH, height, "accuracy of every arm", parts)


def _cells(kind: str, start: float, y: float, step: float, places: range) -> str:
    """Cells at these places of a line, as one path."""
    if not places:
        return ""
    size = max(step - 1.5, 1.0)
    squares = "".join(f"M{start + step * place:.1f} {y}h{size:.1f}v11h-{size:.1f}z" for place in places)
    return f'<path class="{kind}" d="{squares}"/>'


def _forest_row(row: Mapping[str, Any], y: int, low: float, high: float) -> str:
    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - low) / (high - low)

    kind = _STATE_CLASS.get(row["state"], "open")
    parts = [_label(row["label"], y + 4)]
    ceiling = x(row["ceiling"])
    parts.append(f'<line class="ceiling" x1="{ceiling:.1f}" y1="{y - 11}" x2="{ceiling:.1f}" y2="{y + 11}"/>')
    if row["lower"] is not None and row["upper"] is not None:
        parts.append(f'<line class="{kind}" x1="{x(row["lower"]):.1f}" y1="{y}" x2="{x(row["upper"]):.1f}" y2="{y}"/>')
    if row["value"] is not None:
        parts.append(f'<circle class="{kind}" cx="{x(row["value"]):.1f}" cy="{y}" r="5"/>')
    return "".join(parts)


def _label(words: str, y: float) -> str:
    """What a line of a plot is about, left of it and within the picture."""
    shown = text(_LEFT - 10, y, words, "end")
    narrow = f'<text textLength="{_LEFT - 14}" lengthAdjust="spacingAndGlyphs"'
    return shown.replace("<text", narrow, 1) if len(words) > _MOST_LETTERS else shown


def _axis(low: float, high: float, y: int) -> str:
    scale = (_WIDTH - _LEFT - _RIGHT) / (high - low)
    marks = "".join(_tick(_LEFT + scale * (tick - low), y, tick) for tick in ticks(low, high))
    return f'<line class="axis" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>{marks}'


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers (1, 2 or 5 times a power of ten apart) within the range."""
    step = 10.0 ** math.floor(math.log10(high - low))
    step = next(step * part for part in (0.2, 0.5, 1.0, 2.0) if (high - low) / (step * part) < _MOST_TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from 10**low to 10**high; 2 and 5 times them as well where those are few. Both are exponents."""
    powers = range(math.floor(low), math.floor(high) + 1)
    for digits in ((1, 2, 5), (1,)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        within = [value for value in found if low <= math.log10(value) <= high]
        if 1 < len(within) <= _MOST_TICKS:
            return within
    if len(within) > _MOST_TICKS:
        return within[:: -(-len(within) // _MOST_TICKS)]
    return [float(f"{10.0**end:.2g}") for end in (low, high)]


def _tick(x: float, y: float, value: float) -> str:
    mark = f'<line class="axis" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 4}"/>'
    return mark + text(x, y + 18, f"{value:.6g}", "middle")


def _zeros(data: Mapping[str, Any], left: float) -> list[str]:
    """How many norms are zero and so are not drawn."""
    real, decoys = data.get("zero_real", 0), data.get("zero_decoy", 0)
    return [text(left, 16, f"exactly zero, not drawn: {real} real, {decoys} decoys", "start")] if real + decoys else []


def _legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    parts = []
    for number, (kind, name) in enumerate(entries):
        x = _WIDTH - 190 + 90 * number
        parts.append(
            f'<g class="{kind}"><rect x="{x}" y="6" width="12" height="12"/></g>{text(x + 17, 16, name, "start")}'
        )
    return parts


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def text(x: float, y: float, words: str, anchor: str) -> str:
    """Words at a place, escaped. `anchor`: start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(words))}</text>'


def _upright(x: float, y: float, text: str) -> str:
    turned = f"translate({x:.1f},{y:.1f}) rotate(-90)"
    return f'<text transform="{turned}" text-anchor="middle">{escape(text)}</text>'


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A whole picture of these parts, which are SVG already; the title is escaped."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}" width="{width:.0f}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
