"""Two audits side by side: what the verdict did, which checks moved and whether their intervals still overlap.

    same, better   0   nothing got worse
    worse          1   the verdict; under an equal verdict the state of a check, or a reading whose interval lies above
                       the earlier one
    incomparable   3   no check in common, other rules (ceilings, rows, target, levels), or a check that is gone

Audits of different bundles are what is compared most; that they differ is told and not judged. Plans may differ in what
they spend, not in what a state means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from splitwire.settings import flatten

Tree = Mapping[str, Any]
Outcome = Literal["same", "better", "worse", "incomparable"]
EXIT_CODES: dict[Outcome, int] = {"same": 0, "better": 0, "worse": 1, "incomparable": 3}
_RULES = (
    "ceilings.",
    "statistics.alpha",
    "statistics.power_ratio",
    "statistics.min_documents",
    "underpowered",
    "partition",
    "target",
    "compute_modes",
    "scope",
)
_BADNESS = {"pass": 0, "inconclusive": 1, "fail": 2}


@dataclass(frozen=True)
class Moved:
    """One check of both audits. `overlap` is None where an interval is not known."""

    subject: str
    unit: str
    before: dict[str, Any]
    after: dict[str, Any]
    overlap: bool | None
    outcome: Literal["same", "better", "worse"]


@dataclass(frozen=True)
class Difference:
    """What changed from one audit to another."""

    outcome: Outcome
    verdict: tuple[str, str]
    moved: tuple[Moved, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    plan: dict[str, tuple[Any, Any]]
    bundles: dict[str, tuple[Any, Any]]
    why: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 same or better, 1 worse, 3 not comparable."""
        return EXIT_CODES[self.outcome]


def compare(before: Tree, after: Tree) -> Difference:
    """The difference of two results; checks that are alike in every number are left out of `moved`."""
    old, new = dict(_checks(before)), dict(_checks(after))
    both = [name for name in old if name in new]
    moved = [_move(name, old[name], new[name]) for name in both]
    plan = _settings(before, after)
    only_before = tuple(name for name in old if name not in new)
    why = _obstacles(both, only_before, plan)
    verdict = (before["verdict"]["state"], after["verdict"]["state"])
    return Difference(
        outcome=_outcome(verdict, moved, why, gone=bool(only_before)),
        verdict=verdict,
        moved=tuple(entry for entry in moved if entry.before != entry.after),
        only_before=only_before,
        only_after=tuple(name for name in new if name not in old),
        plan=plan,
        bundles=_bundles(before, after),
        why=tuple(why),
    )


def _checks(report: Tree) -> Iterator[tuple[str, Tree]]:
    for result in report["results"]:
        for check in result["checks"]:
            yield f"{result['attack']}/{result['family']}/{check['metric']}", check


def _move(subject: str, old: Tree, new: Tree) -> Moved:
    overlap = _overlap(old, new)
    change = _BADNESS[new["state"]] - _BADNESS[old["state"]]
    if not change and overlap is False:
        change = 1 if new["lower"] is not None and old["upper"] is not None and new["lower"] > old["upper"] else -1
    outcome: Literal["same", "better", "worse"] = "worse" if change > 0 else "better" if change < 0 else "same"
    return Moved(subject, new["unit"], _numbers(old), _numbers(new), overlap, outcome)


def _numbers(check: Tree) -> dict[str, Any]:
    return {name: check[name] for name in ("state", "value", "lower", "upper", "ceiling")}


def _overlap(old: Tree, new: Tree) -> bool | None:
    """Whether the intervals share a point; an open side reaches any distance."""
    if all(check["lower"] is None and check["upper"] is None for check in (old, new)):
        return None
    return not (_above(old, new) or _above(new, old))


def _above(one: Tree, other: Tree) -> bool:
    return one["lower"] is not None and other["upper"] is not None and one["lower"] > other["upper"]


def _settings(before: Tree, after: Tree) -> dict[str, tuple[Any, Any]]:
    """Keys of the plan that differ, its name aside."""
    old, new = (dict(flatten(report["plan"]["settings"])) for report in (before, after))
    keys = [key for key in {**old, **new} if key != "name" and old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys}


def _bundles(before: Tree, after: Tree) -> dict[str, tuple[Any, Any]]:
    """What differs of the evidence: bundles by name and settings, and what was captured."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in ("name", "settings_hash", "versions"):
        old, new = ([bundle.get(name) for bundle in report["bundles"]] for report in (before, after))
        if old != new:
            found[name] = (old, new)
    for name in before["captured"]:
        if before["captured"][name] != after["captured"].get(name):
            found[f"captured.{name}"] = (before["captured"][name], after["captured"].get(name))
    return found


def _obstacles(both: list[str], gone: tuple[str, ...], plan: Mapping[str, Any]) -> list[str]:
    """Why a state of one audit does not mean the same in the other."""
    rules = [key for key in plan if key.startswith(_RULES)]
    why = [] if both else ["the audits have no check in common"]
    why += [f"the plans differ in {', '.join(rules)}"] if rules else []
    return why + ([f"{len(gone)} checks were made before and are not made now: {', '.join(gone)}"] if gone else [])


def _outcome(verdict: tuple[str, str], moved: list[Moved], why: list[str], *, gone: bool) -> Outcome:
    if len(why) > int(gone) or not moved:
        return "incomparable"
    change = _BADNESS[verdict[1]] - _BADNESS[verdict[0]]
    outcomes = {entry.outcome for entry in moved}
    if change > 0 or (change == 0 and "worse" in outcomes):
        return "worse"
    if gone:
        return "incomparable"
    return "better" if change < 0 or "better" in outcomes else "same"
