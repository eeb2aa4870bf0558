"""`auditor power`: how many documents an audit needs, before anything is recorded."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from auditor.plan import Plan
    from auditor.statistics.needs import Need


def command(
    *,
    plan: Annotated[
        str, typer.Option(help="default, quick or a TOML file: ceilings, arms, split and levels.")
    ] = "default",
    documents: Annotated[int, typer.Option(help="Documents in all, for the column of what they can detect.")] = 100,
    frames: Annotated[int, typer.Option(help="Frames of one document.")] = 4,
    rows: Annotated[int, typer.Option(help="Real rows of one frame.")] = 32,
    decoys: Annotated[int, typer.Option(help="Decoy rows of one frame; 0 when there are none.")] = 48,
    icc: Annotated[
        float, typer.Option(help="Correlation of rows of one document: (design effect - 1) / (rows - 1).")
    ] = 0.01,
    base: Annotated[float, typer.Option(help="Rate of the most frequent token.")] = 0.05,
    rare: Annotated[float, typer.Option(help="Share of rows whose token is rare.")] = 0.1,
    held_out: Annotated[float, typer.Option(help="Share of documents held out of training.")] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print, for every ceiling of the plan, what so many documents can detect and how many it needs."""
    from auditor.plan.files import load_plan
    from auditor.statistics.needs import Evidence, audit_needs
    from auditor.statistics.units import check_count

    settings = load_plan(plan)
    statistics = settings.statistics
    check_count(frames, "--frames", fewest=1)
    evidence = Evidence(
        rows_count=frames * rows,
        decoys_count=frames * decoys,
        icc_ratio=icc,
        base_ratio=base,
        rare_ratio=rare,
        held_out_ratio=held_out,
        num_arms=len(settings.probe.probes) * settings.probe.restarts,
        alpha=statistics.alpha,
        power_ratio=statistics.power_ratio,
    )
    share = 1 - settings.split.train_ratio - settings.split.select_ratio
    tested = max(1, math.floor(check_count(documents, "--documents", fewest=1) * share + 1e-9))
    needs = audit_needs(
        evidence,
        list(asdict(settings.ceilings).items()),
        documents=tested,
        fewest_documents=statistics.min_documents,
        num_texts=min(documents, settings.inversion.max_texts),
    )
    if as_json:
        tree = {
            "schema": "splitwire.power/1",
            "plan": settings.name,
            "assumptions": asdict(evidence),
            "documents_count": documents,
            "test_documents_count": tested,
            "checks": [asdict(need) | {"needed_documents_in_all_count": _in_all(need, share)} for need in needs],
        }
        typer.echo(json.dumps(tree, indent=1, allow_nan=False))
    else:
        _print(settings, needs, documents, tested, share)


def _in_all(need: Need, share: float) -> int | None:
    """Documents in all, of which this share is in the test split where there is one."""
    if need.needed_documents_count is None or not need.is_split:
        return need.needed_documents_count
    return math.ceil(need.needed_documents_count / share)


def _print(plan: Plan, needs: list[Need], documents: int, tested: int, share: float) -> None:
    from auditor.words import DASH, show

    typer.echo(f"plan {plan.name}: {tested} of {documents} documents are in the test split")
    typer.echo(f"{'ceiling':<22}{'at most':>10}{'detectable':>13}{'allowed':>10}{'test':>8}{'in all':>8}")
    for need in needs:
        in_all = _in_all(need, share)
        typer.echo(
            f"{need.metric:<22}{show(need.ceiling, need.unit):>10}{show(need.detectable, need.unit):>13}"
            f"{show(need.room, need.unit):>10}{need.needed_documents_count or DASH:>8}{in_all or DASH:>8}"
        )
    most = plan.inversion.max_texts
    if any(not need.is_split and (need.needed_documents_count or 0) > most for need in needs):
        typer.echo(
            f"prompt_token_pp        counts all documents, of which inversion.max_texts = {most} are attacked: raise it"
        )
    typer.echo("exact_support_frames   needs one frame of a training step")
    typer.echo("detectable and allowed: distance from a system that leaks nothing; test and in all: documents needed")
