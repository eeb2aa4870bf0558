"""The HTML page of an audit: one file, nothing loaded from elsewhere, every text escaped.

Only the plots of svg.py go in as they are: it escapes every text that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from auditor.report import svg
from auditor.report.numbers import SHORT_FAMILIES, show, show_interval, show_value

_UNIT_TITLES = {"pp": "Token leakage, percentage points", "ratio": "Partition AUC"}


def render_page(report: Mapping[str, Any]) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("auditor.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show_interval"] = show_interval
    environment.globals["show"] = show
    environment.globals["show_value"] = show_value
    template = environment.get_template("audit.html.j2")
    return template.render(
        report=report,
        forests=_forests(report["results"]),
        results=[_with_plots(result) for result in report["results"]],
        settings=json.dumps(report["plan"], indent=1),
    )


def _forests(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """One forest plot a unit that has a scale."""
    plots = []
    for unit, title in _UNIT_TITLES.items():
        rows = [
            {**check, "label": f"{check['metric']} {SHORT_FAMILIES.get(result['family'], result['family'])}"}
            for result in results
            for check in result["checks"]
            if check["unit"] == unit
        ]
        if rows:
            plots.append((title, svg.forest(rows)))
    return plots


def _with_plots(result: Mapping[str, Any]) -> dict[str, Any]:
    details = result["details"]
    plots = []
    if details.get("norm_histogram"):
        plots.append(svg.histogram(details["norm_histogram"]))
    if details.get("roc"):
        plots.append(svg.roc(details["roc"]))
    if details.get("arms"):
        plots.append(svg.arms(details))
    numbers = {key: value for key, value in details.items() if isinstance(value, int | float | str)}
    return {**result, "plots": plots, "numbers": numbers}
