"""A calibration as a reader sees it: detection limits as lines, and on the page one plot a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from auditor.report.dose_plot import dose_plot
from auditor.report.page import environment
from auditor.report.reading import short_family
from auditor.words import show, show_limit
from splitwire.console import printable


def render_calibration(tree: Mapping[str, Any]) -> str:
    """The page of a calibration tree as text."""
    settings = tree["plan"]["settings"]["calibration"]

    def groups(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        pairs = dict.fromkeys((ladder["metric"], ladder["amplitude_ratio"]) for ladder in entry["ladders"])
        return [_group(*pair, entry["ladders"], settings["power_ratio"]) for pair in pairs]

    template = environment().get_template("calibration.html.j2")
    return template.render(tree=tree, settings=settings, groups=groups, mean=_mean, show=show, dose=show_limit)


def _group(
    metric: str, amplitude_ratio: float, ladders: Sequence[Mapping[str, Any]], power_ratio: float
) -> dict[str, Any]:
    """The modes of one metric at one amplitude, in one plot."""
    mine = [ladder for ladder in ladders if (ladder["metric"], ladder["amplitude_ratio"]) == (metric, amplitude_ratio)]
    return {"metric": metric, "amplitude": amplitude_ratio, "ladders": mine, "plot": dose_plot(mine, power_ratio)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def print_calibration(tree: Mapping[str, Any], console: Console) -> None:
    """The detection limits on a terminal: a check a paragraph, a ladder a line."""
    for entry in tree["calibrated"]:
        heads = dict.fromkeys(ladder["metric"] for ladder in entry["ladders"])
        for metric in heads:
            _say(console, f"{metric} {short_family(entry['family'])}, by {entry['attack']}")
            for ladder in entry["ladders"]:
                if ladder["metric"] == metric:
                    _say(console, f"  {_limit(ladder, entry['carrier'])}")
    for entry in tree["not_calibrated"]:
        _say(console, f"not calibrated: {entry['attack']} on {entry['family']}: {entry['reason']}")


def _limit(ladder: Mapping[str, Any], carrier: str) -> str:
    found, broken = (show_limit(ladder[f"{name}_coverage_ratio"], carrier) for name in ("onset", "break"))
    leak = f"{ladder['mode']} leak of amplitude {ladder['amplitude_ratio']:g}"
    return f"{leak}: found {found}, breaks the check {broken}"


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
