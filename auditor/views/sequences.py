"""Which wire rows are one text: found from headers and cache messages alone, as an untrusted node finds it.

Inference: the CACHED frames of one cache of one session, in the order of their steps, are a text for each of its
sequences. Prompts may come in several frames (chunked), batches may be padded, CacheReorder picks sequences, CacheCrop
takes positions back, CacheRelease ends the texts. Training: every sequence of a TRAIN frame of the transformer stack is
a text.

Frames that were sent again, and sessions that two recorders hold, count once. Left out, with the reason: a cache whose
batch changes its size without a reorder, a reorder or crop of what is not there, row lengths that fit no frame.

Shapes: N sequences, R positions of a frame, padding included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import DecodeError

from auditor.evidence.frames import frame_header, opening
from auditor.evidence.sources import FrameSource
from splitwire.bundles import WireRecord, hop_name
from splitwire.v1 import stack_pb2

WIRE_DTYPES = {
    stack_pb2.WIRE_DTYPE_FP32: "fp32",
    stack_pb2.WIRE_DTYPE_BF16: "bf16",
    stack_pb2.WIRE_DTYPE_FP16: "fp16",
    stack_pb2.WIRE_DTYPE_INT8_ROW: "int8",
}
_CACHE_ACTIONS = frozenset({"cache_reorder", "cache_crop", "cache_release"})


@dataclass(frozen=True)
class Piece:
    """Positions `first` to `first + count` of sequence `sequence` of one frame of `width` positions (R)."""

    step: int
    sequence: int
    first: int
    count: int
    width: int


@dataclass(frozen=True)
class TextPieces:
    """One text: its pieces in order. `num_prompt` counts the positions before the first frame of a single one."""

    session: str
    pieces: tuple[Piece, ...]
    wire_dtype: str

    @property
    def num_positions(self) -> int:
        """T."""
        return sum(piece.count for piece in self.pieces)

    @property
    def num_prompt(self) -> int:
        """Positions that came before the first single one; at least the first frame."""
        total = self.pieces[0].count
        for piece in self.pieces[1:]:
            if piece.width == 1:
                break
            total += piece.count
        return total


@dataclass
class FoundTexts:
    """Texts of all sessions, why others were left out, and what kinds of sessions and frames there were."""

    texts: list[TextPieces] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    num_cached: int = 0
    num_train: int = 0
    num_gram: int = 0
    """TRAIN frames of the gram stack, whose rows are no positions."""


def find_texts(sources: Sequence[FrameSource], *, training: bool) -> FoundTexts:
    """The texts of CACHED frames, or of TRAIN frames when `training`."""
    found, seen = FoundTexts(), set[str]()
    for source in sources:
        sessions = _sessions(source)
        for name, session in sessions.items():
            if name not in seen:
                _read_session(name, session, found, training=training)
        seen |= sessions.keys()
    return found


@dataclass
class _Session:
    """What one session sent, by step."""

    is_gram: bool = False
    events: dict[int, stack_pb2.FrameHeader | stack_pb2.Control] = field(default_factory=dict)


def _sessions(source: FrameSource) -> dict[str, _Session]:
    sessions: dict[str, _Session] = {}
    for record in source.messages():
        if not record.session_hash or record.direction != "request":
            continue
        session = sessions.setdefault(record.session_hash, _Session())
        request = opening(record)
        if request is not None:
            session.is_gram = request.stack_kind == stack_pb2.STACK_KIND_GRAM
        event = _event(record)
        if event is not None:
            session.events.setdefault(int(event.step), event)
    return {name: session for name, session in sessions.items() if session.events}


def _event(record: WireRecord) -> stack_pb2.FrameHeader | stack_pb2.Control | None:
    """The header of a FORWARD frame, or a message about a cache."""
    if hop_name(record.hop) == "FORWARD":
        return frame_header(record)
    if hop_name(record.hop) != "CONTROL" or record.kind != "ExchangeRequest":
        return None
    try:
        control = stack_pb2.ExchangeRequest.FromString(record.message).control
    except DecodeError:
        return None
    return control if control.WhichOneof("action") in _CACHE_ACTIONS else None


def _read_session(name: str, session: _Session, found: FoundTexts, *, training: bool) -> None:
    caches = _Caches(name, found)
    for step in sorted(session.events):
        event = session.events[step]
        if isinstance(event, stack_pb2.Control):
            caches.control(event)
        elif event.compute_mode == stack_pb2.COMPUTE_MODE_CACHED:
            found.num_cached += 1
            if not training:
                caches.add(event)
        elif event.compute_mode == stack_pb2.COMPUTE_MODE_TRAIN:
            found.num_train += 1
            found.num_gram += session.is_gram
            if training and not session.is_gram:
                found.texts += _training_texts(name, event, found)
    caches.finish()


def _training_texts(name: str, header: stack_pb2.FrameHeader, found: FoundTexts) -> Iterator[TextPieces]:
    pieces = _pieces(header)
    if pieces is None:
        found.left_out["frames whose row lengths do not fit them"] += 1
        return
    for piece in pieces:
        yield TextPieces(name, (piece,), WIRE_DTYPES.get(header.dtype, "fp32"))


def _pieces(header: stack_pb2.FrameHeader) -> list[Piece] | None:
    """The real positions of every sequence of a frame; None when its header contradicts itself."""
    if len(header.shape) != len("NRH"):
        return None
    num_sequences, width = int(header.shape[0]), int(header.shape[1])
    lengths = [int(length) for length in header.row_lengths] or [width] * num_sequences
    if len(lengths) != num_sequences or any(not 0 < length <= width for length in lengths):
        return None
    is_left = header.padding_side == stack_pb2.PADDING_SIDE_LEFT
    step = int(header.step)
    return [
        Piece(step, number, width - length if is_left else 0, length, width) for number, length in enumerate(lengths)
    ]


class _Caches:
    """The caches of one session while its steps go by."""

    def __init__(self, session: str, found: FoundTexts) -> None:
        self._session, self._found = session, found
        self._open: dict[int, list[list[Piece]]] = {}
        self._broken: set[int] = set()
        self._dtype = "fp32"

    def add(self, header: stack_pb2.FrameHeader) -> None:
        """One more frame of a cache."""
        number, pieces = int(header.cache_id), _pieces(header)
        self._dtype = WIRE_DTYPES.get(header.dtype, "fp32")
        if number in self._broken:
            return
        if pieces is None:
            self._leave_out(number, "row lengths do not fit their frame")
            return
        texts = self._open.setdefault(number, [[] for _ in pieces])
        if len(texts) != len(pieces):
            self._leave_out(number, "the batch of a cache changed its size without a reorder")
            return
        for text, piece in zip(texts, pieces, strict=True):
            text.append(piece)

    def control(self, control: stack_pb2.Control) -> None:
        """A reorder, a crop or the end of a cache."""
        action: Any = getattr(control, control.WhichOneof("action") or "")
        number = int(action.cache_id)
        if isinstance(action, stack_pb2.CacheRelease):
            self._finish(number)
            self._broken.discard(number)
        elif number in self._open:
            reordered = isinstance(action, stack_pb2.CacheReorder)
            texts = _reordered(self._open[number], action) if reordered else _cropped(self._open[number], action)
            if texts is None:
                self._leave_out(number, "a cache was reordered or cropped beyond what it holds")
            else:
                self._open[number] = texts

    def finish(self) -> None:
        """The session is over."""
        for number in list(self._open):
            self._finish(number)

    def _finish(self, number: int) -> None:
        for text in self._open.pop(number, []):
            if text:
                self._found.texts.append(TextPieces(self._session, tuple(text), self._dtype))

    def _leave_out(self, number: int, reason: str) -> None:
        self._found.left_out[reason] += len(self._open.pop(number, [None]))
        self._broken.add(number)


def _reordered(texts: list[list[Piece]], action: stack_pb2.CacheReorder) -> list[list[Piece]] | None:
    if any(index >= len(texts) for index in action.indices):
        return None
    return [list(texts[index]) for index in action.indices]


def _cropped(texts: list[list[Piece]], action: stack_pb2.CacheCrop) -> list[list[Piece]] | None:
    """The texts without the last positions of their cache, padding counted as the cache counts it."""
    excess = sum(piece.width for piece in texts[0]) - int(action.num_positions) if texts else 0
    if excess < 0:
        return None
    return [_without_last(text, excess) for text in texts]


def _without_last(text: list[Piece], excess: int) -> list[Piece]:
    kept = list(text)
    while excess and kept:
        piece = kept.pop()
        width = piece.width - excess
        excess = max(0, -width)
        count = min(piece.first + piece.count, width) - piece.first
        if count > 0:
            kept.append(replace(piece, count=count, width=width))
            break
    return kept
