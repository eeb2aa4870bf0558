"""One cell of a comparison: one attack on one family of one bundle, its metrics and its time; or why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from auditor.attacks import ATTACKS
from auditor.attacks.inversion.parameters import parameters_of
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.scorers.inverting import Captured, Inversion, capture_texts
from auditor.scorers.model import named_model
from auditor.text_metrics.intervals import Metric
from auditor.text_metrics.report import Pair, decoded, measure
from auditor.views.base import NotMeasurableError
from splitwire.backbone import load_tokenizer
from splitwire.errors import SplitwireError

MODEL_NAMED = "model_named"

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
        if captured.attack.question == "model":
            return _model_cell(captured, bundle, plan, progress)
        inversion = captured.attacked(captured.view, plan, progress)
        return _cell(captured, inversion, bundle, plan, show)
    except NotMeasurableError as error:
        return Failure(name, family, bundle, str(error))
    except SplitwireError as error:
        return Failure(name, family, bundle, told_error(error))
    except Exception as error:  # noqa: BLE001 - an attack may be another package's; its text may hold what it read
        return Failure(name, family, bundle, f"the attack ended with {type(error).__name__}")


def told_error(error: SplitwireError) -> str:
    """What is wrong and what to do about it, in one line."""
    return f"{error.message}: {error.remedy}" if error.remedy else error.message


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
        parameters=_parameters(captured),
        told=inversion.told_numbers(),
        problems=captured.key.problems,
    )


def _model_cell(captured: Captured, bundle: str, plan: Plan, progress: Progress) -> Cell:
    """Which model was named: one metric, that it is the right one."""
    began, view = time.perf_counter(), captured.view
    naming = named_model(captured, view, plan, progress)
    documents = len({key.document for key in captured.key.texts})
    named = Metric(MODEL_NAMED, "text", float(naming.is_right), None, None, len(view.texts), documents, naming.told)
    return Cell(
        attack=captured.attack.name,
        family=view.family,
        bundle=bundle,
        num_texts=len(view.texts),
        num_positions=sum(len(text.forward) for text in view.texts),
        num_documents=documents,
        seconds_a_text=0.0,
        fit_seconds=time.perf_counter() - began,
        metrics=(named,),
        parameters=_parameters(captured),
        problems=captured.key.problems,
    )


def _parameters(captured: Captured) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters_of(captured.attack).items())


def _show(pairs: list[Pair], tokenizer: Any, show: ShowText) -> None:
    for pair in pairs:
        known = pair.true >= 0
        show(decoded(pair.true[known], tokenizer), decoded(pair.guessed[known], tokenizer))
