"""The table of a comparison: comparison.md to read, comparison.csv to plot, comparison.json with everything.

Seconds are of the machine that measured them. All three are written whole, or none.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auditor.comparing.cells import MODEL_NAMED, Cell
from auditor.comparing.run import Compared
from auditor.plan import Plan
from auditor.report.files import replace_texts
from auditor.report.text_metrics import show_metric
from auditor.results import plain
from auditor.text_metrics.performance import defence_score
from auditor.words import DASH
from splitwire.errors import RecordingError

SCHEMA = "splitwire.compare/1"
_COLUMNS = (
    ("token_accuracy", "text"),
    ("token_accuracy", "prompt"),
    ("token_accuracy", "answer"),
    ("exact_match", "text"),
    ("rouge_l", "text"),
    ("bleu", "text"),
    ("meteor", "text"),
    ("token_bag_f1", "text"),
    ("entity_f1", "text"),
    ("embedding_similarity", "text"),
    ("ap_alpha", "text"),
)


def write_comparison(compared: Compared, plan: Plan, out: Path, scores: Mapping[str, float]) -> list[Path]:
    """The three files. `scores` are main task performances by bundle, with `undefended`; with them DCS is told."""
    rated = dcs_of(compared.cells, scores)
    texts = {
        "comparison.md": _markdown(compared, plan, rated),
        "comparison.csv": _csv(compared.cells, rated),
        "comparison.json": _json(compared, plan, rated),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        replace_texts({out / name: text for name, text in texts.items()})
    except OSError as error:
        raise RecordingError(
            f"the comparison cannot be written to {out}: {error.strerror}",
            remedy="free space, or give another folder with --out; finished cells are kept",
        ) from None
    return [out / name for name in texts]


def dcs_of(cells: Sequence[Cell], scores: Mapping[str, float]) -> dict[tuple[str, str, str], float]:
    """DCS by (bundle, attack, family), where the task's performance and AP are known."""
    found = {}
    for cell in cells:
        ap = next((metric.value for metric in cell.metrics if metric.name == "ap_alpha"), None)
        if ap is not None and cell.bundle in scores and "undefended" in scores:
            score = defence_score(scores["undefended"], scores[cell.bundle], ap)
            found[cell.bundle, cell.attack, cell.family] = score
    return found


def _markdown(compared: Compared, plan: Plan, rated: Mapping[tuple[str, str, str], float]) -> str:
    titles = [f"{name.replace('_', ' ')} ({part})" for name, part in _COLUMNS]
    head = [
        "bundle",
        "attack",
        "family",
        "texts",
        "positions",
        *titles,
        *(["DCS"] if rated else []),
        "seconds a text",
        "seconds to fit, once",
    ]
    lines = [
        f"# Comparison of inversion attacks under the plan {plan.name} ({plan.hash[:12]})",
        "",
        f"Bounds are one-sided at {plan.statistics.alpha:g} each, clustered on the document. Bags forget the order.",
        "",
        _row(head),
        _row(["---"] * len(head)),
    ]
    for cell in compared.cells:
        dcs = [f"{rated[_key(cell)]:.3f}" if _key(cell) in rated else DASH] if rated else []
        start = [cell.bundle, cell.attack, cell.family, str(cell.num_texts), str(cell.num_positions)]
        values = [_shown(cell, name, part) for name, part in _COLUMNS]
        lines.append(_row([*start, *values, *dcs, f"{cell.seconds_a_text:.3g}", f"{cell.fit_seconds:.3g}"]))
    named = [(cell, metric) for cell in compared.cells for metric in cell.metrics if metric.name == MODEL_NAMED]
    if named:
        lines += ["", "Models that were named:", ""]
        lines += [f"- {cell.attack} on {cell.family} of {cell.bundle} {metric.note}" for cell, metric in named]
    if compared.failures:
        lines += ["", "Could not be had:", ""]
        lines += [
            f"- {entry.attack} on {entry.family} of {entry.bundle}: {entry.reason}" for entry in compared.failures
        ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def _shown(cell: Cell, name: str, part: str) -> str:
    found = next((metric for metric in cell.metrics if (metric.name, metric.part) == (name, part)), None)
    return DASH if found is None else show_metric(vars(found))


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.bundle, cell.attack, cell.family


def _csv(cells: Sequence[Cell], rated: Mapping[tuple[str, str, str], float]) -> str:
    """One line a metric of a cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["bundle", "attack", "family", "part", "metric", "value", "lower", "upper", "texts", "documents", "note"]
    writer.writerow(head)
    for cell in cells:
        for metric in cell.metrics:
            values = [metric.value, metric.lower, metric.upper, metric.num_texts, metric.num_documents, metric.note]
            writer.writerow([*_key(cell), metric.part, metric.name, *values])
        extra = {"seconds_a_text": cell.seconds_a_text, "fit_seconds": cell.fit_seconds, "dcs": rated.get(_key(cell))}
        for name, value in extra.items():
            if value is not None:
                writer.writerow([*_key(cell), "text", name, value, None, None, cell.num_texts, cell.num_documents, ""])
    return text.getvalue()


def _json(compared: Compared, plan: Plan, rated: Mapping[tuple[str, str, str], float]) -> str:
    tree: dict[str, Any] = {
        "schema": SCHEMA,
        "plan": {"name": plan.name, "hash": plan.hash},
        "cells": [{**plain(cell), "dcs": rated.get(_key(cell))} for cell in compared.cells],
        "failures": plain(compared.failures),
    }
    return json.dumps(tree, allow_nan=False, indent=1) + "\n"
