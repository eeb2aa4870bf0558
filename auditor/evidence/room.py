"""Whether the rows of an audit fit the disk that takes them, checked before any is read.

They lie in TMPDIR while an audit runs: the frames of the hops that the plan reads, four bytes a value whatever crossed,
what the truth says of each row, and at most three copies of one view (as it is, with a planted leak, and what is
planted).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from auditor.channels import RESPONSE_SIDE
from auditor.evidence.frames import frame_header
from auditor.plan import Plan
from splitwire.bundles import Bundle, SnapshotBundle
from splitwire.errors import RecordingError
from splitwire.v1 import channels_pb2, stack_pb2

_VIEW_COPIES = 3
_COLUMN_BYTES = 41  # what the truth says of a row
_GROWTH = {stack_pb2.WIRE_DTYPE_BF16: 2, stack_pb2.WIRE_DTYPE_FP16: 2, stack_pb2.WIRE_DTYPE_INT8_ROW: 4}
"""How many times larger a value is on the disk than it was on the wire."""


def check_room(bundles: Sequence[Bundle | SnapshotBundle], summaries: Sequence[Mapping[str, Any]], plan: Plan) -> None:
    """RecordingError, with folder, need and what is free, unless TMPDIR has room for the rows of these bundles."""
    rows = rows_bytes(bundles, summaries, with_returned=RESPONSE_SIDE in plan.families)
    needed = rows + _VIEW_COPIES * min(rows, plan.probe.max_view_bytes)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RecordingError(
            f"the rows of this audit need {_mebibytes(needed)} in {folder}, which has {_mebibytes(free)} free",
            remedy="set TMPDIR to a folder with more room, or lower probe.max_view_bytes",
        )


def rows_bytes(
    bundles: Sequence[Bundle | SnapshotBundle], summaries: Sequence[Mapping[str, Any]], *, with_returned: bool
) -> int:
    """Bytes of the rows of these bundles as an audit keeps them. A session that two bundles hold is kept once."""
    hops = ["FORWARD", "BACKWARD", *(["RETURN"] if with_returned else [])]
    seen: set[str] = set()
    total = 0
    pairs = (
        (bundle, summary) for bundle, summary in zip(bundles, summaries, strict=True) if isinstance(bundle, Bundle)
    )
    for bundle, summary in sorted(pairs, key=lambda pair: -len(pair[0].sessions())):
        sessions = set(bundle.sessions())
        if not sessions or not sessions <= seen:
            counted = [summary["counts"].get(hop, {}).get("bytes", 0) for hop in hops]
            header = _first_header(bundle) if counted[0] else None
            if header is not None:
                growth, width = _GROWTH.get(header.dtype, 1), max([1, *header.shape[-1:]])
                total += growth * sum(counted) + growth * counted[0] * _COLUMN_BYTES // (4 * width)
            seen |= sessions
    return total


def _first_header(bundle: Bundle) -> stack_pb2.FrameHeader | None:
    headers = (frame_header(record) for record in bundle.messages(channels_pb2.HOP_FORWARD))
    return next((header for header in headers if header is not None), None)


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
