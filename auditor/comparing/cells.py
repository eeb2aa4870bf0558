"""One cell of a comparison: one attack on one family of one bundle, its metrics and its time; or why there are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from auditor.attacks import ATTACKS
from auditor.attacks.inversion.parameters import parameters_of
from auditor.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.scorers.inverting import Captured, Inversion, capture_texts
from auditor.text_metrics.intervals import Metric
from auditor.text_metrics.report import Pair, decoded, measure
from auditor.views.base import NotMeasurableError
from splitwire.backbone import load_tokenizer
from splitwire.errors import SplitwireError

ShowText = Callable[[str, str], None]
"""Called with the true and the recovered text of one document, for a terminal alone."""


@dataclass(frozen=True)
class Cell:
    """What an attack recovered. Times are of this machine: `seconds_a_text` is the mean of what each text took, and
    `fit_seconds` what was spent once for all.
    """

    attack: str
    family: str
    bundle: str
    num_texts: int
    num_positions: int
    num_documents: int
    seconds_a_text: float
    fit_seconds: float
    metrics: tuple[Metric, ...]
    parameters: str
    told: dict[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A cell that could not be had, and why."""

    attack: str
    family: str
    bundle: str
    reason: str


def attack_cell(
    name: str, family: str, bundle: str, material: Material, plan: Plan, progress: Progress, show: ShowText | None
) -> Cell | Failure:
    """Runs one attack. What goes wrong in one is told and leaves the others alone."""
    try:
        captured = capture_texts(ATTACKS[name], material, family, plan)
        inversion = captured.attacked(captured.view, plan, progress)
        return _cell(captured, inversion, bundle, plan, show)
    except NotMeasurableError as error:
        return Failure(name, family, bundle, str(error))
    except SplitwireError as error:
        remedy = f": {error.remedy}" if error.remedy else ""
        return Failure(name, family, bundle, f"{error.message}{remedy}")
    except Exception as error:  # noqa: BLE001 - an attack may be another package's; its text may hold what it read
        return Failure(name, family, bundle, f"the attack ended with {type(error).__name__}")


def _cell(captured: Captured, inversion: Inversion, bundle: str, plan: Plan, show: ShowText | None) -> Cell:
    pairs, tokenizer = inversion.pairs, load_tokenizer(captured.view.model.settings)
    if show is not None:
        _show(pairs, tokenizer, show)
    recovered = inversion.recovered
    fits = [guess.details.get("fit_seconds") for guess in recovered]
    return Cell(
        attack=captured.attack.name,
        family=captured.view.family,
        bundle=bundle,
        num_texts=len(pairs),
        num_positions=sum(int((pair.true >= 0).sum()) for pair in pairs),
        num_documents=len({pair.document for pair in pairs}),
        seconds_a_text=sum(guess.seconds for guess in recovered) / len(recovered),
        fit_seconds=sum(float(value) for value in fits if isinstance(value, int | float)),
        metrics=tuple(measure(pairs, tokenizer, plan)),
        parameters=", ".join(f"{name} {value}" for name, value in parameters_of(captured.attack).items()),
        told=inversion.told_numbers(),
        problems=captured.key.problems,
    )


def _show(pairs: list[Pair], tokenizer: Any, show: ShowText) -> None:
    for pair in pairs:
        known = pair.true >= 0
        show(decoded(pair.true[known], tokenizer), decoded(pair.guessed[known], tokenizer))
