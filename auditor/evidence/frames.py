"""What one recorded frame says: its header, its rows that are no padding, its units and the document it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from auditor.arrays import Flags, Rows
from splitwire.bundles import WireRecord, hop_name
from splitwire.v1 import stack_pb2

NO_DOCUMENT = -1
_KINDS: dict[str, type[stack_pb2.ExchangeRequest | stack_pb2.ExchangeResponse]] = {
    "ExchangeRequest": stack_pb2.ExchangeRequest,
    "ExchangeResponse": stack_pb2.ExchangeResponse,
}


def frame_header(record: WireRecord) -> stack_pb2.FrameHeader | None:
    """The header of a frame's first message; None for any other message."""
    kind = _KINDS.get(record.kind)
    if kind is None or hop_name(record.hop) == "CONTROL":
        return None
    try:
        frame = kind.FromString(record.message).frame
    except DecodeError:
        return None
    return frame.header if frame.HasField("header") else None


def opening(record: WireRecord) -> stack_pb2.OpenSessionRequest | None:
    """The request that opens a session; None for any other message, and for one that is not of the contract."""
    if record.kind != "OpenSessionRequest":
        return None
    try:
        return stack_pb2.OpenSessionRequest.FromString(record.message)
    except DecodeError:
        return None


def asks_by_row(kind: int | None, real_NR: Flags, keep_NR: Flags) -> bool:
    """Whether the units are rows. Without a recorded opening: whether an item mixes real rows and others."""
    if kind is not None:
        return kind == stack_pb2.STACK_KIND_GRAM
    counts = (real_NR & keep_NR).sum(1)
    return bool(((counts > 0) & (counts < keep_NR.sum(1))).any())


def real_positions(header: stack_pb2.FrameHeader, shape: tuple[int, ...]) -> Flags:
    """Which positions [N, R] are not padding, by the public header."""
    lengths = np.array(header.row_lengths, dtype=np.int64)
    if len(lengths) != shape[0]:
        return np.ones(shape, dtype=bool)
    position = np.arange(shape[1])[None]
    if header.padding_side == stack_pb2.PADDING_SIDE_LEFT:
        return np.asarray(position >= shape[1] - lengths[:, None])
    return np.asarray(position < lengths[:, None])


def primary_document(truth: dict[str, NDArray[Any]]) -> int:
    """The document of most real rows; of most rows where none is real; -1 where no row has one."""
    documents = truth["document"][truth["real"]] if truth["real"].any() else truth["document"]
    documents = documents[documents >= 0]
    return int(np.bincount(documents).argmax()) if len(documents) else NO_DOCUMENT


def row_norms(rows: Rows) -> NDArray[np.float64]:
    """L2 norms in float64, so that a tiny row does not underflow to an exact zero."""
    return np.asarray(np.sqrt((rows.astype(np.float64) ** 2).sum(-1)))
