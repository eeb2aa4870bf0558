"""The summary of an audit on a terminal: one screen of 80 columns and 24 lines, whatever the audit found.

Verdict, one line a family with its worst check, then what was shown, what is open and what to do, as far as the screen
goes. What does not fit is counted; the page has all of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from auditor.channels import FAMILIES
from auditor.report.numbers import show_value
from auditor.report.reading import read, short_family
from auditor.words import show
from splitwire.console import printable

NUM_COLUMNS, NUM_LINES = 80, 22
"""Two lines of the screen are left to the caller, for the paths."""

_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow", "not measured": "dim"}
_SHORT = {"inconclusive": "open", "not measured": "-"}
_RANK = ("fail", "inconclusive", "pass")
_MAX_ITEM_LINES = 3
_FAMILY_COLUMNS, _STATE_COLUMNS = 11, 6
Line = Text | str


def print_summary(report: Mapping[str, Any], console: Console) -> None:
    """Prints the screen."""
    for line in summary_lines(report):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def summary_lines(report: Mapping[str, Any]) -> list[Line]:
    """The lines of the screen, none wider than it, none more than it holds."""
    reading, state = read(report), report["verdict"]["state"]
    lines: list[Line] = [Text.assemble("verdict: ", (state.upper(), _STYLES[state]))]
    lines += _wrapped(reading.headline, "", "", 2)
    lines += [*_families(report)]
    sections = (
        ("Shown to leak", reading.leaks),
        ("What to do next", reading.steps),
        ("Not decided", reading.undecided),
        ("Not measured", [reading.not_measured] if reading.not_measured else []),
    )
    for place, (title, items) in enumerate(sections):
        later = sum(1 for _, rest in sections[place + 1 :] if rest)
        lines += _section(title, items, NUM_LINES - len(lines) - 2 * later)
    return lines[:NUM_LINES]


def _families(report: Mapping[str, Any]) -> list[Line]:
    """One line a family of the scope, or one that was measured or can be seen."""
    worst: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    counts: dict[str, list[str]] = {}
    for result in report["results"]:
        for check in result["checks"]:
            family = result["family"]
            counts.setdefault(family, []).append(check["state"])
            if family not in worst or _badness(check) > _badness(worst[family][1]):
                worst[family] = (result, check)
    wanted = {*report["plan"]["settings"]["scope"], *report["observable"], *worst}
    names = [name for name in FAMILIES if name in wanted]
    names += sorted(wanted - set(names))
    return [_family(name, counts.get(name, []), worst.get(name)) for name in names]


def _family(name: str, states: Sequence[str], found: tuple[Mapping[str, Any], Mapping[str, Any]] | None) -> Text:
    state = min(states, key=_RANK.index) if states else "not measured"
    head = printable(short_family(name))[:_FAMILY_COLUMNS].ljust(_FAMILY_COLUMNS)
    text = "not measured"
    if found is not None:
        result, check = found
        ceiling = show(check["ceiling"], check["unit"])
        passed = f"{states.count('pass')} of {len(states)} pass"
        text = f"{passed}; {check['metric']} {show_value(check, result)}, ceiling {ceiling}"
    text = printable(text)
    room = NUM_COLUMNS - _FAMILY_COLUMNS - _STATE_COLUMNS - 2
    shown = _SHORT.get(state, state).ljust(_STATE_COLUMNS)
    return Text.assemble(f"{head} ", (shown, _STYLES[state]), f" {textwrap.shorten(text, room, placeholder='...')}")


def _badness(check: Mapping[str, Any]) -> tuple[int, float]:
    """How near to a fail a check is: its state, then its value above the ceiling."""
    value = check["value"] if check["value"] is not None else check["ceiling"]
    return -_RANK.index(check["state"]), value - check["ceiling"]


def _section(title: str, items: Sequence[str], room: int) -> list[Line]:
    """A title and as many items as fit; the rest is counted in the title."""
    if not items or room < 2:
        return []
    lines: list[Line] = []
    shown = 0
    for item in items:
        wrapped = _wrapped(item, " - ", "   ", min(_MAX_ITEM_LINES, room - 1 - len(lines)))
        if not wrapped:
            break
        lines += wrapped
        shown += 1
    more = f" ({len(items) - shown} more on the page)" if shown < len(items) else ""
    return [Text.assemble((title, "bold"), more), *lines]


def _wrapped(text: str, first: str, rest: str, most: int) -> list[Line]:
    if most < 1:
        return []
    return [
        *textwrap.wrap(
            printable(text),
            NUM_COLUMNS,
            initial_indent=first,
            subsequent_indent=rest,
            max_lines=most,
            placeholder=" ...",
        )
    ]
