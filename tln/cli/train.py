"""`tln train`: private fine-tuning against an untrusted node.

Shows the effective defence before anything crosses, progress while it runs, and the utility gate at the end. Exit code
0 means that the run ended; what the gate says is in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitwire.errors import SettingsError
from tln.cli.options import Config, Preset, PrintSettings, Set, effective_settings, show_settings

if TYPE_CHECKING:
    from tln.settings import TlnSettings
    from tln.training.report import Report
    from tln.training.resume import Resume


def command(
    config: Config = None,
    preset: Preset = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
    out: Annotated[Path | None, typer.Option(help="New folder for the results; same as train.out.")] = None,
    record: Annotated[Path | None, typer.Option(help="Folder for a wire bundle of this run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in train.out.")] = False,
    fresh_noise: Annotated[
        bool, typer.Option("--fresh-noise", help="With --resume: new noise for the steps that are taken again.")
    ] = False,
) -> None:
    """Fine-tune with the middle of the model on the untrusted node."""
    if fresh_noise and not resume:
        raise SettingsError("--fresh-noise is given without --resume", remedy="give both, or neither")
    named = (("train.out", out), ("record.folder", record))
    settings = effective_settings(config, pairs, _given(named), preset)
    if print_settings:
        from tln.settings import check_training

        show_settings(settings, check_training)
        return
    _show(settings, _train(settings, "never" if not resume else "fresh_noise" if fresh_noise else "same_noise"))


def _given(named: Iterable[tuple[str, Path | None]]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in named if value is not None]


def _train(settings: TlnSettings, resume: Resume) -> Report:
    from tln.cli.display import rich_progress, start_logging
    from tln.training.finetune import finetune

    start_logging()
    with rich_progress() as progress:
        return finetune(settings, progress, announce, resume=resume)


def announce(defence: Mapping[str, Any]) -> None:
    """The effective defence, on stderr; an unsafe one loudly."""
    from tln.adversaries import UNFELT_WARNING
    from tln.connect import NO_DEFENCE
    from tln.gradient_policy import OPEN_WARNING
    from tln.mechanisms.decoys import PUBLISHED_WARNING

    frame, gradient = defence["frame"], defence["gradient"]
    if gradient.get("unsafe"):
        typer.secho(OPEN_WARNING, fg="red", bold=True, err=True)
    if frame.get("decoys", {}).get("unsafe"):
        typer.secho(PUBLISHED_WARNING, fg="red", bold=True, err=True)
    if not frame:
        typer.secho(NO_DEFENCE, fg="red", bold=True, err=True)
    if defence.get("adversaries", {}).get("steps_felt") == 0:
        typer.secho(UNFELT_WARNING, fg="red", bold=True, err=True)
    more = [(name, defence[name]) for name in ("adversaries", "keys") if name in defence]
    typer.echo("effective defence (no DP claim):", err=True)
    for name, values in [*frame.items(), ("gradient", gradient), *more]:
        typer.echo(f"  {name:12s} {'  '.join(f'{key}={value}' for key, value in values.items())}", err=True)


def _show(settings: TlnSettings, report: Report) -> None:
    utility, history = report.utility, report.history
    typer.echo(
        f"trained: {len(history.loss)} steps of {settings.train.frames_per_step} frames, loss {history.loss[0]:.4f} -> "
        f"{history.loss[-1]:.4f}, {report.seconds_a_step:.3f} s a step, {report.frames_a_second:.1f} frames/s"
    )
    typer.echo(f"documents: {report.members} members, {report.non_members} held out; session {report.session_hash}")
    typer.echo(
        f"utility gate {utility.outcome}: held-out cross-entropy {utility.split_nats:.4f} nats, unsplit "
        f"{utility.unsplit_nats:.4f}, delta {utility.delta_nats:+.4f} [{utility.delta_lower_nats:+.4f}, "
        f"{utility.delta_upper_nats:+.4f}] over {utility.num_documents} documents, ceiling {utility.ceiling_nats}"
        + (f" ({utility.note})" if utility.note else "")
    )
    ledger = report.ledger
    typer.echo(
        f"ledger: {ledger['claim']}; the document charged most had {ledger['most_real_rows_of_a_document']} rows, "
        f"{ledger['most_decoy_rows_of_a_document']} decoy rows and {ledger['most_gradient_rows_of_a_document']} "
        "gradient rows"
    )
    for reason in ledger["reasons"]:
        typer.echo(f"  because {reason}")
    for node, count in report.deviating_answers.items():
        typer.secho(f"untrusted node {node} deviated from the median {count} times", fg="red", bold=True)
    typer.echo(f"report: {Path(settings.train.out) / 'report.json'}")
    if settings.record.folder:
        typer.echo(f"{'bundle' if settings.record.wire else 'truth'}: {settings.record.folder}")
