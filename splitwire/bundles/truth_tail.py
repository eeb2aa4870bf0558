"""Follows a truth.sealed while the trusted node writes it, beside the wire that it tells about.

The trusted node writes the truth of a frame before it sends the frame, and the steps of a session ascend. So the two
files are read side by side: `find` reads on until it meets the step, and what it passes on the way waits for its own
frame, at most `max_waiting` records of it. On the trusted host only.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from splitwire.bundles.truth import TRUTH_PURPOSE, Document, TruthRecord, documents_of, make_record, unpack
from splitwire.errors import SealError
from splitwire.sealed_stream import SealedRecord, SealedStream

MAX_WAITING = 512


class TruthTail:
    """The truth so far. SealError for another key, or a file that was changed."""

    def __init__(self, path: Path, key: X25519PrivateKey, max_waiting: int = MAX_WAITING) -> None:
        self.documents: list[Document] = []
        self._path = path
        self._key = key
        self._max_waiting = max_waiting
        self._stream: SealedStream | None = None
        self._last: SealedRecord | None = None
        self._newest_step: dict[str, int] = {}
        self._waiting: OrderedDict[tuple[str, int], TruthRecord] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        """Records whose frame did not come yet."""
        return len(self._waiting)

    def find(self, session_hash: str, step: int) -> TruthRecord | None:
        """The record of one FORWARD frame, which is given once; None when there is none so far."""
        key = (session_hash, step)
        if key not in self._waiting and self._newest_step.get(session_hash, 0) < step:
            self._read_until(key)
        return self._waiting.pop(key, None)

    def _read_until(self, key: tuple[str, int]) -> None:
        stream = self._opened()
        if stream is None:
            return
        for sealed in stream.records(self._last):
            self._last = sealed
            self._take(sealed)
            if self._newest_step.get(key[0], 0) >= key[1]:
                return

    def _opened(self) -> SealedStream | None:
        if self._stream is None:
            try:
                if not self._path.stat().st_size:
                    return None
            except FileNotFoundError:
                return None
            except OSError as error:
                raise SealError(f"{self._path} cannot be read: {error.strerror}", remedy="check the path") from None
            self._stream = SealedStream(self._path, self._key, TRUTH_PURPOSE)
        return self._stream

    def _take(self, sealed: SealedRecord) -> None:
        kind, head, arrays = unpack(sealed.plaintext, self._path)
        if kind == "documents":
            self.documents.extend(documents_of(head, self._path))
        elif kind == "record":
            record = make_record(head, arrays, self._path)
            self._newest_step[record.session_hash] = record.step
            self._waiting.setdefault((record.session_hash, record.step), record)
            while len(self._waiting) > self._max_waiting:
                self._waiting.popitem(last=False)
