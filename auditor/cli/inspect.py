"""`auditor inspect`: what a bundle holds, without any value in it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.settings import flatten
from splitwire.v1 import channels_pb2

if TYPE_CHECKING:
    from splitwire.bundles import Bundle, RecordedFrame

_TENSOR_HOPS = (
    channels_pb2.HOP_FORWARD,
    channels_pb2.HOP_RETURN,
    channels_pb2.HOP_BACKWARD,
    channels_pb2.HOP_INPUT_GRADIENT,
)


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)],
    *,
    frames: Annotated[bool, typer.Option("--frames", help="List every tensor: hop, step, dtype, shape.")] = False,
    settings: Annotated[bool, typer.Option("--settings", help="Show the recording program's settings.")] = False,
) -> None:
    """Show recorder, sessions, hops and versions of a bundle, complete or cut off. Never shows a tensor's values."""
    from splitwire.bundles import open_bundle  # keeps --help quick

    opened = open_bundle(bundle)
    _show_head(opened)
    _show_counts(opened)
    if settings:
        for key, value in flatten(opened.settings):
            typer.echo(f"setting {key} = {json.dumps(value)}")
    if frames:
        for hop in _TENSOR_HOPS:
            for frame in opened.frames(hop):
                typer.echo(_frame_line(frame))
    for problem in opened.problems:
        typer.echo(f"note: {problem}", err=True)


def _show_head(bundle: Bundle) -> None:
    manifest = bundle.manifest
    state = "complete" if bundle.is_complete else "incomplete (it has no manifest, or wire.mcap was cut off)"
    typer.echo(f"bundle {bundle.folder}: {state}, recorded by {bundle.recorder}")
    typer.echo(", ".join(f"{name} {version}" for name, version in sorted(bundle.versions.items())))
    if manifest is not None:
        typer.echo(f"from {manifest['created']} to {manifest['closed']}, {manifest['num_dropped']} messages dropped")
        typer.echo(f"settings hash {manifest['settings_hash']}")


def _show_counts(bundle: Bundle) -> None:
    from splitwire.bundles import hop_name  # keeps --help quick

    messages: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for record in bundle.messages():
        key = (record.session_hash, hop_name(record.hop))
        messages[key] += 1
        sizes[key] += len(record.message)
    for session, hop in messages:
        name = f"session {session}" if session else "before a session"
        typer.echo(f"{name}: {hop.lower()}: {messages[session, hop]} messages, {sizes[session, hop]} bytes")


def _frame_line(frame: RecordedFrame) -> str:
    from splitwire.bundles import hop_name  # keeps --help quick
    from splitwire.frames import wire_dtype_name  # loads torch

    header = frame.header
    shape = "x".join(str(size) for size in header.shape)
    return (
        f"session {frame.session_hash} step {header.step} {hop_name(frame.hop).lower()} "
        f"{wire_dtype_name(header.dtype)} {shape} {header.total_bytes} bytes digest {frame.message_digest[:16]}"
    )
