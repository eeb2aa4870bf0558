"""A calibration as a reader sees it: detection limits as a table, and on the page one plot a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from auditor.report.dose_plot import dose_plot
from auditor.report.page import environment
from auditor.report.reading import short_family
from auditor.words import show, show_limit


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
    """The detection limits as a table on a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("check", "attack", "leak", "found from", "breaks from"):
        table.add_column(name, overflow="fold")
    for entry in tree["calibrated"]:
        for ladder in entry["ladders"]:
            table.add_row(
                f"{ladder['metric']} {short_family(entry['family'])}",
                entry["attack"],
                f"{ladder['mode']} {ladder['amplitude_ratio']:g}",
                show_limit(ladder["onset_coverage_ratio"], entry["carrier"]),
                show_limit(ladder["break_coverage_ratio"], entry["carrier"]),
            )
    console.print(table)
    for entry in tree["not_calibrated"]:
        console.print(f"not calibrated: {entry['attack']} on {entry['family']}: {entry['reason']}", highlight=False)
