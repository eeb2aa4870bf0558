"""`auditor inspect`: what a bundle holds, without any value in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.console import printable
from splitwire.settings import flatten
from splitwire.v1 import channels_pb2, stack_pb2

if TYPE_CHECKING:
    from splitwire.bundles import Bundle, RecordedFrame, SnapshotBundle

_TENSOR_HOPS = (
    channels_pb2.HOP_FORWARD,
    channels_pb2.HOP_RETURN,
    channels_pb2.HOP_BACKWARD,
    channels_pb2.HOP_INPUT_GRADIENT,
)


_MAX_SHAPES = 4
_TABLE_WIDTH = 140


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)],
    *,
    frames: Annotated[bool, typer.Option("--frames", help="List every tensor: hop, step, dtype, shape.")] = False,
    settings: Annotated[bool, typer.Option("--settings", help="Show the recording program's settings.")] = False,
) -> None:
    """Show hops, frames, bytes, rates, gaps and settings of a bundle, complete or cut off. Never shows a value."""
    from splitwire.bundles import is_snapshot_bundle, open_bundle, open_snapshots  # keeps --help quick

    if is_snapshot_bundle(bundle):
        _show_snapshots(open_snapshots(bundle), with_settings=settings)
        return
    opened = open_bundle(bundle)
    _show_head(opened)
    _show_traffic(opened)
    if settings:
        for key, value in flatten(opened.settings):
            _say(f"setting {key} = {json.dumps(value)}")
    if frames:
        for hop in _TENSOR_HOPS:
            for frame in opened.frames(hop):
                _say(_frame_line(frame))
    for problem in opened.problems:
        _say(f"note: {problem}", err=True)


def _say(text: str, *, err: bool = False) -> None:
    """Prints a line of a bundle, whoever wrote it."""
    typer.echo(printable(text), err=err)


def _show_head(bundle: Bundle) -> None:
    from auditor.perturbation import active_line  # keeps --help quick

    manifest = bundle.manifest
    state = "complete" if bundle.is_complete else "incomplete (it has no manifest, or wire.mcap was cut off)"
    _say(f"bundle {bundle.folder}: {state}, recorded by {bundle.recorder}")
    if line := active_line(bundle.settings):
        _say(line)
    _say(", ".join(f"{name} {version}" for name, version in sorted(bundle.versions.items())))
    if manifest is not None:
        _say(f"from {manifest['created']} to {manifest['closed']}, {manifest['num_dropped']} messages dropped")
        _say(f"settings hash {manifest['settings_hash']}")


def _show_snapshots(bundle: SnapshotBundle, *, with_settings: bool) -> None:
    manifest = bundle.head
    state = "complete" if manifest is not None else "incomplete (it has no manifest: its session has not ended)"
    _say(f"snapshots {bundle.folder}: {state}, session {bundle.session_hash}")
    if manifest is not None:
        _say(", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items())))
        _say(f"from {manifest.created} to {manifest.closed}, {manifest.num_dropped} snapshots dropped")
        facts = [*flatten(manifest.stack, "stack."), *flatten(manifest.optimizer, "optimizer.")]
        for key, value in [*facts, *(flatten(manifest.settings) if with_settings else ())]:
            _say(f"{key} = {json.dumps(value)}")
    for entry in bundle.entries:
        size = entry.path.stat().st_size
        _say(f"optimizer step {entry.optimizer_step} at wire step {entry.last_step}: {size} bytes")


def _show_traffic(bundle: Bundle) -> None:
    from rich.console import Console
    from rich.table import Table

    from auditor.evidence.traffic import summarise
    from auditor.importing.convert import RECORDER

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("session", "hop", "frames", "messages", "bytes", "MB/s", "frames/s", "median gap", "largest gap"):
        table.add_column(name, justify="left" if name in {"session", "hop"} else "right", no_wrap=True)
    shapes = []
    has_times = bundle.recorder != RECORDER
    for hop in summarise(bundle.messages()):
        gaps = hop.gaps_seconds if has_times else None
        table.add_row(
            printable(hop.session_hash) or "(none yet)",
            hop.hop.lower(),
            str(hop.num_frames) if hop.hop != "CONTROL" else "",
            str(hop.num_messages),
            str(hop.num_bytes),
            _rate(hop.per_second(hop.num_bytes), 1e-6) if has_times else "",
            _rate(hop.per_second(hop.num_frames)) if has_times and hop.hop != "CONTROL" else "",
            *("", "") if gaps is None else (f"{gaps[0]:.3f} s", f"{gaps[1]:.3f} s"),
        )
        shapes += [_shape_line(hop.hop, *key, count) for key, count in hop.shapes.most_common(_MAX_SHAPES)]
    # Wide enough for every column, whatever the terminal or file: a cut number would be a wrong one.
    Console(width=_TABLE_WIDTH, soft_wrap=True).print(table)
    if not has_times:
        _say("an imported bundle has no times, so no rates and gaps")
    for line in shapes:
        _say(line)


def _rate(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.2f}"


def _shape_line(hop: str, dtype: stack_pb2.WireDtype, shape: tuple[int, ...], count: int) -> str:
    from splitwire.frames import wire_dtype_name  # loads torch

    return f"{hop.lower()}: {count} frames of {'x'.join(map(str, shape))} {wire_dtype_name(dtype)}"


def _frame_line(frame: RecordedFrame) -> str:
    from splitwire.bundles import hop_name  # keeps --help quick
    from splitwire.frames import wire_dtype_name  # loads torch

    header = frame.header
    shape = "x".join(str(size) for size in header.shape)
    return (
        f"session {frame.session_hash} step {header.step} {hop_name(frame.hop).lower()} "
        f"{wire_dtype_name(header.dtype)} {shape} {header.total_bytes} bytes digest {frame.message_digest[:16]}"
    )
