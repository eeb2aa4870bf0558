"""Factors over the depth of the model as one SVG file: a line a layer name, expected and maximum in two panels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from auditor.paf.measure import LayerFactor
from auditor.report import svg

_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP = 62, 34, 420, 260, 70
_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#7f7f7f",
    "#8c564b",
    "#9467bd",
)
_STYLE = (
    "<style>text{font:12px sans-serif}.axis{stroke:#888}polyline{fill:none;stroke-width:1.5}circle{stroke:none}</style>"
)
_PANELS = (("expected", "PAF"), ("maximum", "Max-PAF"))


def paf_plot(factors: Sequence[LayerFactor], title: str) -> str:
    """The picture, log scale, blocks from left to right. Factors of 0 are not drawn."""
    names = list(dict.fromkeys(factor.name for factor in factors))
    values = [value for factor in factors for value in (factor.expected, factor.maximum) if value > 0]
    low, high = math.log10(min(values)), math.log10(max(values))
    last = max(factor.block for factor in factors)
    parts = [_STYLE]
    for panel, (field, label) in enumerate(_PANELS):
        left = _LEFT + panel * (_WIDTH + _GAP)
        parts += _frame(left, low, high, last, label)
        for name, colour in zip(names, _palette(len(names)), strict=True):
            mine = [factor for factor in factors if factor.name == name and getattr(factor, field) > 0]
            places = [
                (_x(left, factor.block, last), _y(math.log10(getattr(factor, field)), low, high)) for factor in mine
            ]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{line}" stroke="{colour}"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
    right = _LEFT + 2 * _WIDTH + _GAP + 20
    for number, (name, colour) in enumerate(zip(names, _palette(len(names)), strict=True)):
        y = _TOP + 18 * number + 6
        parts.append(
            f'<circle cx="{right}" cy="{y}" r="5" fill="{colour}"/>{svg.text(right + 12, y + 4, name, "start")}'
        )
    height = max(_TOP + _HEIGHT + 46, _TOP + 18 * len(names) + 12)
    picture = svg.drawing(right + 230, height, title, parts)
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def _frame(left: float, low: float, high: float, last: int, label: str) -> list[str]:
    base = _TOP + _HEIGHT
    step = max(1, math.ceil((last + 1) / 10))
    return [
        svg.text(left + _WIDTH / 2, 20, label, "middle"),
        f'<line class="axis" x1="{left}" y1="{base}" x2="{left + _WIDTH}" y2="{base}"/>',
        f'<line class="axis" x1="{left}" y1="{_TOP}" x2="{left}" y2="{base}"/>',
        *(
            svg.text(left - 8, _y(math.log10(tick), low, high) + 4, f"{tick:.4g}", "end")
            for tick in svg.log_ticks(low, high)
        ),
        *(svg.text(_x(left, block, last), base + 18, str(block), "middle") for block in range(0, last + 1, step)),
        svg.text(left + _WIDTH / 2, base + 38, "block", "middle"),
    ]


def _palette(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]


def _x(left: float, block: int, last: int) -> float:
    return left + 10 + (_WIDTH - 20) * block / max(last, 1)


def _y(value: float, low: float, high: float) -> float:
    return _TOP + 8 + (_HEIGHT - 16) * (1 - (value - low) / (high - low or 1.0))
