"""Metrics of recovered texts as a reader sees them: one line a metric, one column for texts, prompts and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.words import DASH

PARTS = ("text", "prompt", "answer")


@dataclass(frozen=True)
class MetricLine:
    """One metric: its name, a cell for each of PARTS, and what has to be known of it."""

    name: str
    cells: tuple[str, ...]
    note: str


def metric_lines(metrics: Sequence[Mapping[str, Any]]) -> list[MetricLine]:
    """The lines of a result's `text_metrics`, in their order."""
    names = list(dict.fromkeys(entry["name"] for entry in metrics))
    lines = []
    for name in names:
        by_part = {entry["part"]: entry for entry in metrics if entry["name"] == name}
        cells = tuple(show_metric(by_part[part]) if part in by_part else DASH for part in PARTS)
        lines.append(MetricLine(name.replace("_", " "), cells, next(iter(by_part.values()))["note"]))
    return lines


def show_metric(entry: Mapping[str, Any]) -> str:
    """A ratio with its bounds: 0.981 (0.964 to 0.993)."""
    if entry["value"] is None:
        return DASH
    text = f"{entry['value']:.3f}"
    if entry["lower"] is None or entry["upper"] is None:
        return text
    return f"{text} ({entry['lower']:.3f} to {entry['upper']:.3f})"
