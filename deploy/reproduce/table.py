"""The tables of docs/experiments.md, from results alone.

One line a setting: the mean over its seeds with the smallest and the largest in brackets, or the one value with its
one-sided bounds where there is one seed. Then one line a run. A dash is "not measured", never zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from splitwire.errors import SettingsError
from splitwire.private_files import replace_file

BEGIN, END = "<!-- results: written by make reproduce -->", "<!-- results end -->"
NONE_YET = "No cell has been run.\n"
DASH = "-"
_PRESETS = ("published-naked", "published-open", "published-mitigated", "ours")

Result = dict[str, Any]
Read = Callable[[Result], tuple[float | None, float | None, float | None]]
"""Value, lower and upper bound of one number of a result."""


def render(results: Iterable[Result]) -> str:
    """Markdown of all tables."""
    ordered = sorted(results, key=_order)
    if not ordered:
        return NONE_YET
    settings = [list(group) for _, group in groupby(ordered, key=lambda result: _order(result)[:-1])]
    parts = [
        "### What the untrusted node could read\n",
        _table((*_SETTING, "seeds", *_READ), [_setting_line(group, _READ) for group in settings]),
        "### What it cost\n",
        _table((*_SETTING, "seeds", *_COST), [_setting_line(group, _COST) for group in settings]),
        "### Every run\n",
        _table((*_SETTING, "seed", *_RUN), [_run_line(result) for result in ordered]),
    ]
    return "\n".join(parts)


def write_section(document: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Puts the tables between the two markers of a document; SettingsError when it has none."""
    try:
        before = document.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{document} cannot be read: {error.strerror}", remedy="name it with --document") from None
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(before):
        raise SettingsError(f"{document} has no markers for the tables", remedy=f"add the lines {begin} and {end}")
    section = f"{begin}\n\n{text}\n{end}"
    replace_file(document, pattern.sub(lambda _: section, before).encode("utf-8"))


def _check(audit: str, entry: str, metric: str) -> Read:
    def read(result: Result) -> tuple[float | None, float | None, float | None]:
        found = result["audits"][audit]["results"].get(entry)
        check = None if found is None else found["checks"].get(metric)
        return (None, None, None) if check is None else (check["value"], check["lower"], check["upper"])

    return read


def _detail(entry: str, name: str) -> Read:
    def read(result: Result) -> tuple[float | None, float | None, float | None]:
        found = result["audits"]["audit"]["results"].get(entry)
        return (None if found is None else found["details"].get(name)), None, None

    return read


def _training(*path: str) -> Read:
    def read(result: Result) -> tuple[float | None, float | None, float | None]:
        value: Any = result["training"]
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value, None, None

    return read


def _utility(result: Result) -> tuple[float | None, float | None, float | None]:
    found = result["training"]["utility"]
    return found["delta_nats"], found["delta_lower_nats"], found["delta_upper_nats"]


def _flattery(result: Result) -> tuple[float | None, float | None, float | None]:
    found = result["training"]["utility"]
    seen = found.get("look_ahead_delta_nats")
    return (None if seen is None else found["delta_nats"] - seen), None, None


def _exact_share(result: Result) -> tuple[float | None, float | None, float | None]:
    return _detail("gradient_support/gradient_only", "exact_frames_ratio")(result)


def _seconds(name: str) -> Read:
    return lambda result: (result["seconds"][name], None, None)


_FORWARD, _GRADIENT = "latent_probe/forward_only", "latent_probe/gradient_only"
_JOINT, _LINK = "latent_probe/joint_forward_gradient", "linkage/accumulated_history"
_SETTING = ("preset", "text", "cut", "D", "steps")
_READ: dict[str, tuple[Read, str]] = {
    "frames with exact support": (_exact_share, "{:.0%}"),
    "partition AUC, gradient": (_check("audit", "row_norm/gradient_only", "partition_auc"), "{:.3f}"),
    "partition AUC, forward": (_check("audit", "row_norm/forward_only", "partition_auc"), "{:.3f}"),
    "linkage AUC": (_check("audit", _LINK, "linkage_auc"), "{:.3f}"),
    "decoys found at 5 % false alarms": (_detail(_LINK, "row_norm_found_at_5_percent_ratio"), "{:.0%}"),
    "forward G, pp": (_check("audit", _FORWARD, "token_top1_gate"), "{:+.2f}"),
    "gradient G, pp": (_check("audit", _GRADIENT, "token_top1_gate"), "{:+.2f}"),
    "joint G, pp": (_check("audit", _JOINT, "token_top1_gate"), "{:+.2f}"),
    "forward A, real rows told, pp": (_check("oracle", _FORWARD, "token_top1_effect"), "{:+.2f}"),
    "gradient A, pp": (_check("audit", _GRADIENT, "token_top1_effect"), "{:+.2f}"),
}
_COST: dict[str, tuple[Read, str]] = {
    "utility delta, nats": (_utility, "{:+.3f}"),
    "layers skipped, nats": (_training("utility", "skipped_delta_nats"), "{:+.3f}"),
    "hidden by look-ahead, nats": (_flattery, "{:+.3f}"),
    "seconds a step": (_training("seconds_a_step"), "{:.2f}"),
    "training, s": (_seconds("train"), "{:.0f}"),
    "cell, s": (_seconds("all"), "{:.0f}"),
}
_RUN: dict[str, tuple[Read, str]] = {
    "exact support": (_check("audit", "gradient_support/gradient_only", "exact_support_frames"), "{:.0f}"),
    **{name: _READ[name] for name in ("partition AUC, gradient", "linkage AUC")},
    "gradient A, pp": _READ["gradient A, pp"],
    "joint A, pp": (_check("audit", _JOINT, "token_top1_effect"), "{:+.2f}"),
    "forward A, real rows told, pp": _READ["forward A, real rows told, pp"],
    "utility delta, nats": _COST["utility delta, nats"],
}


def _order(result: Result) -> tuple[Any, ...]:
    cell = result["cell"]
    preset = _PRESETS.index(cell["preset"]) if cell["preset"] in _PRESETS else len(_PRESETS)
    setting = (cell["corpus"], cell["depth"], cell["width"], cell["steps"])
    return *setting, preset, cell["preset"], cell["variant"], cell["seed"]


def _setting_line(group: Sequence[Result], columns: dict[str, tuple[Read, str]]) -> list[str]:
    shown = [
        _one(read(group[0]), style) if len(group) == 1 else _many([read(result)[0] for result in group], style)
        for read, style in columns.values()
    ]
    return [*_names(group[0]), str(len(group)), *shown]


def _run_line(result: Result) -> list[str]:
    return [
        *_names(result), str(result["cell"]["seed"]), *(_one(read(result), style) for read, style in _RUN.values())
    ]  # fmt: skip


def _names(result: Result) -> list[str]:
    cell = result["cell"]
    defence = f"{cell['preset']}+{cell['variant']}" if cell["variant"] else cell["preset"]
    return [defence, cell["corpus"], cell["depth"], str(cell["width"]), str(cell["steps"])]


def _one(found: tuple[float | None, float | None, float | None], style: str) -> str:
    value, lower, upper = found
    if value is None:
        return DASH
    if lower == upper:
        return style.format(value)
    bounds = (DASH if bound is None else style.format(bound) for bound in (lower, upper))
    return f"{style.format(value)} [{', '.join(bounds)}]"


def _many(values: Sequence[float | None], style: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return DASH
    mean, low, high = (style.format(value) for value in (sum(known) / len(known), min(known), max(known)))
    short = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{mean}{short}" if low == high else f"{mean} [{low}, {high}]{short}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
