"""The tables of the studies, from results alone: one line a cell, by attack, defence and depth.

Value [lower, upper] are one-sided bounds at 95 % over prompts, not had from fewer than five. A dash is "not measured".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from deploy.study.defences import Defence, Kind
from deploy.study.settings import Setup, StudySettings

BEGIN, END = "<!-- studies: written by make study -->", "<!-- studies end -->"
NONE_YET = "No cell has been run.\n"
DASH = "-"

Result = Mapping[str, Any]
Found = tuple[Setup, Result | None]
Read = Callable[[Result], str]


def render(settings: StudySettings, found: Sequence[Found]) -> str:
    """Markdown of one table a study that has a result, and how many of its cells are missing."""
    parts = []
    attacks = list(settings.variants_by_name)
    ordered = sorted(found, key=lambda one: (attacks.index(one[0].variant.name), _place(one[0])))
    for study in settings.studies:
        cells = [(setup, result) for setup, result in ordered if setup.cell.study == study.name]
        done = [(setup, result) for setup, result in cells if result is not None]
        if done:
            missing = [setup.cell.name for setup, result in cells if result is None]
            told = f"\nNot run, {len(missing)} of {len(cells)}: {', '.join(missing)}.\n" if missing else ""
            parts.append(f"### {study.title}\n\n{_table(done)}{told}")
    return "\n".join(parts) or NONE_YET


def _table(done: Sequence[tuple[Setup, Result]]) -> str:
    columns = _ANSWERED if any(setup.cell.answers for setup, _ in done) else _READ
    where = {name: tell for name, tell in _WHERE.items() if name in _ALWAYS or len({tell(s) for s, _ in done}) > 1}
    header = ["attack", "schedule", *where, *columns]
    lines = [
        [
            setup.cell.variant,
            _schedule(result),
            *(tell(setup) for tell in where.values()),
            *(read(result) for read in columns.values()),
        ]
        for setup, result in done
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ["---"] * len(header), *lines))


def _place(setup: Setup) -> tuple[int, float, str, int]:
    """Where a cell stands among those of its attack."""
    defence = Defence.parse(setup.cell.defence)
    return get_args(Kind).index(defence.kind), defence.strength, setup.cell.target, setup.cell.blocks


def _schedule(result: Result) -> str:
    """Parameters that are not the published ones."""
    return ", ".join(f"{name} {value}" for name, value in result["replaced"].items()) or "published"


def _metric(name: str, part: str, style: str = "{:.3f}") -> Read:
    def read(result: Result) -> str:
        found = next((m for m in result["metrics"] if (m["name"], m["part"]) == (name, part)), None)
        if found is None or found["value"] is None:
            return DASH
        bounds = [found["lower"], found["upper"]]
        if all(bound is None for bound in bounds):
            return style.format(found["value"])
        told = ", ".join(DASH if bound is None else style.format(bound) for bound in bounds)
        return f"{style.format(found['value'])} [{told}]"

    return read


def _cpu_seconds_a_token(result: Result) -> str:
    """Of the processor, without what was spent once for all texts."""
    fit = _fit_share(result)
    return f"{result['seconds']['cpu'] * (1 - fit) / result['num_positions']:.3f}"


def _fit_cpu_seconds(result: Result) -> str:
    fit = _fit_share(result)
    return f"{result['seconds']['cpu'] * fit:.0f}" if fit else DASH


def _fit_share(result: Result) -> float:
    """By the clock."""
    fit, texts = result["seconds"]["fit"], sum(result["seconds"]["by_text"])
    return fit / (fit + texts) if fit else 0.0


_ALWAYS = ("blocks",)
_WHERE: dict[str, Callable[[Setup], str]] = {
    "blocks": lambda setup: str(setup.cell.blocks),
    "defence": lambda setup: setup.cell.defence,
    "target": lambda setup: setup.cell.target,
    "prompts": lambda setup: str(setup.cell.num_prompts),
}
_COST: dict[str, Read] = {"CPU s a token": _cpu_seconds_a_token, "CPU s once": _fit_cpu_seconds}
_READ: dict[str, Read] = {
    "accuracy": _metric("token_accuracy", "text"),
    "precision, bag": _metric("token_bag_precision", "text"),
    "recall, bag": _metric("token_bag_recall", "text"),
    "ROUGE-L": _metric("rouge_l", "text"),
    "BLEU": _metric("bleu", "text"),
    "exact": _metric("exact_match", "text", "{:.2f}"),
    **_COST,
}
_ANSWERED: dict[str, Read] = {
    "AP": _metric("ap_alpha", "text"),
    "AP, prompt": _metric("ap_input", "text"),
    "AP, answer": _metric("ap_response", "text"),
    "accuracy, prompt": _metric("token_accuracy", "prompt"),
    "accuracy, answer": _metric("token_accuracy", "answer"),
    "entity F1": _metric("entity_f1", "text"),
    **_COST,
}
