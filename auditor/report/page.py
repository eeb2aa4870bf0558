"""The HTML page of an audit: one file, nothing loaded from elsewhere, every text escaped.

Only the plots of svg.py go in as they are: it escapes every text that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from auditor.report import svg
from auditor.report.numbers import show_interval, show_short, show_value
from auditor.report.reading import read, short_family
from auditor.report.sweep import sweep_lines, sweep_plot
from auditor.report.text_metrics import PARTS, metric_lines
from auditor.words import MEANINGS, show, show_limit
from splitwire.console import printable

_UNIT_TITLES = {"pp": "Token leakage, percentage points", "ratio": "Partition AUC"}


def render_page(report: Mapping[str, Any], run: Mapping[str, Any] | None = None) -> str:
    """The page as text. `run` is the content of run.json, where it is known."""
    templates = environment()
    templates.filters["show_interval"] = show_interval
    templates.filters["short"] = show_short
    templates.globals["show"] = show
    templates.globals["show_limit"] = show_limit
    templates.globals["show_value"] = show_value
    templates.globals["text_parts"] = PARTS
    return templates.get_template("page.html.j2").render(
        report=report,
        run=run,
        reading=read(report),
        has_checks=any(result["checks"] for result in report["results"]),
        meanings=_meanings(report["results"]),
        map=svg.support_map(_map(report)),
        map_words=_map_words(_map(report)),
        forests=_forests(report["results"]),
        results=[_with_plots(result, run, report["plan"]["settings"]["ceilings"]) for result in report["results"]],
        settings=json.dumps(report["plan"], indent=1),
    )


def environment() -> Environment:
    """The templates of this package, every text escaped."""
    templates = Environment(
        loader=PackageLoader("auditor.report"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["breakable"] = _breakable
    return templates


def _shown(value: Any) -> Any:
    """Text of the result without characters that nobody sees; markup of this package as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(name: str) -> Markup:
    """A name that a narrow column may break after its underscores, escaped."""
    return Markup("_<wbr>").join(printable(name).split("_"))


def _meanings(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What each metric of these results says, in their order."""
    metrics = dict.fromkeys(check["metric"] for result in results for check in result["checks"])
    return {metric: MEANINGS[metric] for metric in metrics if metric in MEANINGS}


def _map(report: Mapping[str, Any]) -> Sequence[Mapping[str, int]]:
    """Counts of the first frames, where the support question was asked."""
    maps = (result["details"].get("support_map") for result in report["results"])
    return next((found for found in maps if found), [])


def _map_words(frames: Sequence[Mapping[str, int]]) -> str:
    """What the picture says."""
    zeros = sum(frame["real_zero"] + frame["decoy_zero"] for frame in frames)
    wrong = sum(frame["real_zero"] + frame["decoy_nonzero"] for frame in frames)
    if not zeros:
        return (
            "Every row has a gradient: zeros tell nothing. Whether the length of a row does is what partition_auc says."
        )
    seen = "The node sees which cells are filled; sorted into sides by the sealed truth,"
    return f"{seen} {'filled is real and empty is decoy, without exception' if not wrong else 'they match in part'}."


def _forests(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """One forest plot a unit that has a scale."""
    plots = []
    for unit, title in _UNIT_TITLES.items():
        rows = [
            {**check, "label": f"{check['metric']} {short_family(result['family'])}"}
            for result in results
            for check in result["checks"]
            if check["unit"] == unit
        ]
        if rows:
            plots.append((title, svg.forest(rows)))
    return plots


def _with_plots(
    result: Mapping[str, Any], run: Mapping[str, Any] | None, ceilings: Mapping[str, float]
) -> dict[str, Any]:
    details = result["details"]
    plots = []
    if details.get("norm_histogram"):
        plots.append(svg.histogram(details["norm_histogram"]))
    if details.get("roc"):
        plots.append(svg.roc(details["roc"]))
    if details.get("arms"):
        plots.append(svg.arms(details))
    sweep = details.get("sweep") or []
    if sweep:
        plots.append(sweep_plot(sweep, ceilings["token_pp"]))
    numbers = {key: value for key, value in details.items() if isinstance(value, int | float | str)}
    seconds = (run or {}).get("seconds_by_part", {}).get(f"{result['attack']}/{result['family']}")
    return {
        **result,
        "plots": plots,
        "sweep": sweep_lines(sweep),
        "texts": metric_lines(details.get("text_metrics") or []),
        "numbers": numbers,
        "seconds": seconds,
    }
