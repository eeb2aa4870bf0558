"""Undoes every gauge of a recorded run, for an auditor who holds the key that the run key was sealed to.

    report = replay(bundle, key=Path("audit.key"), out=Path("ungauged"))

A gauge is drawn from (run key, session, step) alone, so on the same build it is drawn again bit for bit, and the
RETURN rows without it are bit for bit those that the trusted node decoded. FORWARD and BACKWARD rows come within
float32 rounding of those it had: a rotated row no longer holds the last bits of the row before. INPUT_GRADIENT rows
are those before the clip of `frame.input_gradient_clip_norm`. Noise stays in the rows: it is no gauge.

With the truth, every FORWARD frame must be the one that the truth is about, and where the rows were permuted the
real ones must stand in the order of their text again; a run key or settings of another run fail there. Without it,
nothing can tell that they do not fit, and the report says so. What `verify_bundle` finds is told too.

Refused: a bundle without run key, gauges or settings, a key that does not open it, a frame without truth, an output
folder that is not empty. One frame is in memory at a time. What it writes is private: 0600 files in a 0700 folder.

Shapes: N frames, R rows, D width.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from splitwire.bundles import TRUTH_FILE, Bundle, RecordedFrame, Truth, hop_name, open_bundle, read_truth, verify_bundle
from splitwire.errors import BundleError, SettingsError
from splitwire.private_files import make_private_folder, write_private_file
from splitwire.v1 import channels_pb2
from tln.keys import FrameKeys
from tln.recorded import GAUGES, SessionGauges, gauges_of, load_run_key, recorded_settings, scope_of
from tln.recording import RUN_KEY_FILE

_TRUTH_FIELDS = ("real", "order", "token", "label", "document")
_HOPS = (
    channels_pb2.HOP_FORWARD,
    channels_pb2.HOP_RETURN,
    channels_pb2.HOP_BACKWARD,
    channels_pb2.HOP_INPUT_GRADIENT,
)
_GRADIENT_HOPS = frozenset((channels_pb2.HOP_BACKWARD, channels_pb2.HOP_INPUT_GRADIENT))


@dataclass
class ReplayReport:
    """What was undone. `digests` has the SHA-256 over the ungauged float32 rows of each hop, in recorded order.

    `sent` names the steps of the FORWARD frames, by session.
    """

    gauges: tuple[str, ...]
    sessions: tuple[str, ...]
    num_frames: Counter[str] = field(default_factory=Counter)
    digests: dict[str, str] = field(default_factory=dict)
    num_joined: int = 0
    is_order_checked: bool = False
    problems: list[str] = field(default_factory=list)
    sent: set[tuple[str, int]] = field(default_factory=set)


def replay(
    folder: Path,
    *,
    key: Path,
    truth: Path | None = None,
    run_key: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    scope: str = "",
    out: Path | None = None,
) -> ReplayReport:
    """Undoes the gauges of all frames; writes them to `out` when given.

    `truth` and `run_key` default to the sealed files in the bundle (no truth is used where there is none), `settings`
    to those that its recorder told. `scope` names the session under whose streams a resumed run went on; a trusted
    node's own bundle tells it. BundleError, SealError or PkiError as in the module docstring.
    """
    bundle = open_bundle(folder)
    secret = load_run_key(run_key or folder / RUN_KEY_FILE, key)
    recorded = recorded_settings(bundle, settings)
    known = _open_truth(folder, truth, key)
    names = tuple(gauge.name for gauge in gauges_of(recorded, FrameKeys(secret)))
    if not names:
        raise BundleError(
            f"{folder} has no gauge to undo: frame.mechanisms has none of {', '.join(GAUGES)}",
            remedy="its rows are as they crossed; read them with auditor inspect",
        )
    report = ReplayReport(names, _sessions(bundle, known))
    if out is not None:
        _make_folder(out)
    for hop in _HOPS:
        digest = hashlib.sha256()
        for session in report.sessions:
            keys = FrameKeys(secret, scope or scope_of(bundle, recorded, session), recorded.keys.ratchet_steps)
            share = bundle.sessions().index(session) if recorded.topology.num_views > 1 else 0
            gauges = SessionGauges(gauges_of(recorded, keys), share, recorded.topology.num_views)
            undoer = _Undoer(gauges, known, report, out)
            for frame in _of_sent_steps(bundle.frames(hop, session), report):
                digest.update(undoer.undo(frame).numpy().tobytes())
        report.digests[hop_name(hop)] = digest.hexdigest()
    _check_complete(known, report)
    report.problems += [*bundle.problems, *verify_bundle(folder).problems]
    return report


def _of_sent_steps(frames: Iterable[RecordedFrame], report: ReplayReport) -> Iterator[RecordedFrame]:
    """Frames of steps that the trusted node sent; the other node may name any step in its own."""
    for frame in frames:
        place = (frame.session_hash, frame.header.step)
        if frame.hop == channels_pb2.HOP_FORWARD:
            report.sent.add(place)
        if place in report.sent:
            yield frame
        else:
            report.problems.append(
                f"a {hop_name(frame.hop)} frame of step {place[1]}, which was never sent, is left out"
            )


class _Undoer:
    """Undoes the frames of one session and hop."""

    def __init__(self, gauges: SessionGauges, truth: Truth | None, report: ReplayReport, out: Path | None) -> None:
        self._gauges = gauges
        self._truth = truth
        self._report = report
        self._out = out

    def undo(self, frame: RecordedFrame) -> torch.Tensor:
        """Rows [N, R, D] without gauges; checks and writes them too."""
        _check_shape(frame)
        rows = frame.tensor.to(torch.float32)
        secrets = self._gauges.draw(frame.header.step, rows)
        rows = self._gauges.undo(rows, secrets, is_gradient=frame.hop in _GRADIENT_HOPS)
        tensors = {"rows": rows, **self._truth_of(frame, secrets)}
        if self._out is not None:
            _write(self._out, frame, tensors)
        self._report.num_frames[hop_name(frame.hop)] += 1
        return rows

    def _truth_of(self, frame: RecordedFrame, secrets: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """What each row really is, in the order of the ungauged rows; checked against the frame."""
        if self._truth is None or frame.hop != channels_pb2.HOP_FORWARD:
            return {}
        record = self._truth.records.get((frame.session_hash, frame.header.step))
        if record is None or record.forward_digest != frame.message_digest:
            raise BundleError(
                f"step {frame.header.step} of session {frame.session_hash} is not the frame that the truth is about"
                if record
                else f"step {frame.header.step} of session {frame.session_hash} has no truth",
                remedy="give the truth.sealed of the same run, and check the bundle with auditor verify",
            )
        table = torch.stack([torch.from_numpy(getattr(record, name)).long() for name in _TRUTH_FIELDS], dim=-1)
        arranged = self._gauges.arrange(table, secrets)
        self._report.num_joined += 1
        self._report.is_order_checked = arranged is not None
        parts = (table if arranged is None else arranged).unbind(dim=-1)
        found = dict(zip(_TRUTH_FIELDS, (part.contiguous() for part in parts), strict=True))
        if arranged is not None:
            _check_order(frame, found["real"] != 0, found["order"])
        return found


def _check_order(frame: RecordedFrame, real: torch.Tensor, order: torch.Tensor) -> None:
    """BundleError unless the real rows of every frame stand in the order of their text."""
    for row_is_real, row_order in zip(real, order, strict=True):
        places = row_order[row_is_real]
        if bool((places[1:] <= places[:-1]).any()):
            raise BundleError(
                f"step {frame.header.step} of session {frame.session_hash}: without the permutation the real rows do "
                "not stand in the order of their text",
                remedy="give the run key and the settings of this very run, and replay on the build that recorded it",
            )


def _check_shape(frame: RecordedFrame) -> None:
    shape = list(frame.header.shape)
    if len(shape) != len(("N", "R", "D")):
        raise BundleError(
            f"step {frame.header.step} of session {frame.session_hash} has shape {shape}, no gauge acts on that",
            remedy="give a bundle of the gram stack",
        )


def _check_complete(truth: Truth | None, report: ReplayReport) -> None:
    if truth is None:
        report.problems.append("no truth: nothing tells whether the run key is that of this run")
    elif report.num_joined < len(truth.records):
        report.problems.append(f"the truth is about {len(truth.records)} frames, the bundle has {report.num_joined}")


def _sessions(bundle: Bundle, truth: Truth | None) -> tuple[str, ...]:
    """The sessions of the run: those that the truth is about, else all of the bundle."""
    recorded: Iterable[str] = bundle.sessions()
    if truth is not None:
        known = {session for session, _ in truth.records}
        recorded = [session for session in recorded if session in known]
    found = tuple(recorded)
    if not found:
        raise BundleError(f"{bundle.folder} has no session of this run", remedy="give bundle and truth of one run")
    return found


def _open_truth(folder: Path, truth: Path | None, key: Path) -> Truth | None:
    if truth is None and not (folder / TRUTH_FILE).exists():
        return None
    return read_truth(truth or folder / TRUTH_FILE, key)


def _make_folder(out: Path) -> None:
    make_private_folder(out)
    if any(out.iterdir()):
        raise SettingsError(f"--out {out} is not empty", remedy="name a new folder; nothing is written over")


def _write(out: Path, frame: RecordedFrame, tensors: dict[str, torch.Tensor]) -> None:
    folder = out / frame.session_hash
    make_private_folder(folder)
    name = f"{frame.header.step:08d}-{hop_name(frame.hop).lower()}.safetensors"
    write_private_file(folder / name, safetensors.torch.save(tensors))
