"""Reads every frame of the bundles of a run, hop by hop, into a capture."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from auditor.evidence.capture import Capture
from auditor.evidence.frames import opening
from auditor.evidence.joining import CaptureBuilder
from auditor.evidence.sources import FrameSource, TruthSource
from auditor.progress import Progress, silent
from splitwire.v1 import channels_pb2, stack_pb2

_MODES = {
    "train": stack_pb2.COMPUTE_MODE_TRAIN,
    "evaluate": stack_pb2.COMPUTE_MODE_EVALUATE,
    "cached": stack_pb2.COMPUTE_MODE_CACHED,
}
_UNREADABLE = "the opening of a session is not of the contract"


def mode_name(mode: int) -> str:
    """A compute mode as plans name it."""
    return next((name for name, number in _MODES.items() if number == mode), f"number {mode}")


def read_capture(
    sources: Sequence[FrameSource],
    truths: Sequence[TruthSource],
    *,
    compute_modes: Iterable[str],
    folder: Path,
    with_returned: bool = False,
    progress: Progress = silent,
) -> Capture:
    """Reads every bundle once a hop and joins it with the truth. `folder` takes the rows. RETURN frames are read when
    `with_returned` asks for them.
    """
    builder = CaptureBuilder(truths, [_MODES[mode] for mode in compute_modes], folder)
    try:
        _read(builder, sources, sum(len(truth.records) for truth in truths), progress, with_returned=with_returned)
    except BaseException:
        builder.abandon()
        raise
    return builder.finish([problem for source in sources for problem in source.problems])


def _read(
    builder: CaptureBuilder, sources: Sequence[FrameSource], expected: int, progress: Progress, *, with_returned: bool
) -> None:
    kinds = {name: kind for source in sources for name, kind in _stack_kinds(source).items()}
    for number, frame in enumerate(_frames(sources, channels_pb2.HOP_FORWARD)):
        progress("reading forward frames", number, expected)
        builder.add_forward(frame, kinds.get(frame.session_hash))
    for number, frame in enumerate(_frames(sources, channels_pb2.HOP_BACKWARD)):
        progress("reading backward frames", number, builder.num_train_steps)
        builder.add_backward(frame)
    for number, frame in enumerate(_frames(sources, channels_pb2.HOP_RETURN) if with_returned else ()):
        progress("reading returned frames", number, builder.num_steps)
        builder.add_returned(frame)


def _frames(sources: Sequence[FrameSource], hop: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(source.frames(hop) for source in sources)


def _stack_kinds(source: FrameSource) -> dict[str, int]:
    """Stack kind of each session whose opening was recorded. One that cannot be read is a problem of the source."""
    kinds: dict[str, int] = {}
    for record in source.messages(channels_pb2.HOP_CONTROL):
        if record.kind != "OpenSessionRequest" or not record.session_hash:
            continue
        request = opening(record)
        if request is not None:
            kinds[record.session_hash] = request.stack_kind
        elif _UNREADABLE not in source.problems:
            source.problems.append(_UNREADABLE)
    return kinds
