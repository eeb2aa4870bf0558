"""What the scorer needs to know and no attack may: real rows, tokens, labels and documents of every FORWARD frame.

The trusted node writes truth.sealed, encrypted to the auditor's key (`splitwire.sealed_stream`). A record is keyed by
(session hash, step) and carries the digest of the FORWARD messages, so that it joins with any recorder's bundle and
with no other. Arrays are stored as safetensors. A truth file without its end is incomplete, and reads up to its last
record.

Shapes: N sequences or frames, R rows of each; a row is a wire row of the frame as it crossed. Never leaves the trusted
host unsealed.
"""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from safetensors import SafetensorError

from splitwire.bundles.texts import TextTruth, read_text
from splitwire.endings import ClosesOrAbandons
from splitwire.errors import SealError
from splitwire.sealed_stream import SealedRecord, SealedStream, SealedStreamWriter
from splitwire.sealing import load_sealing_private_key, load_sealing_public_key

TRUTH_FILE = "truth.sealed"
NO_LABEL = -100
NO_DOCUMENT = -1

TRUTH_PURPOSE = "truth"

_HEAD_LENGTH = struct.Struct("<I")
_INTEGER_FIELDS = ("order", "token", "label", "document")
_PHASES = ("train", "evaluate", "generate")
_DIGEST = re.compile(r"[0-9a-f]{64}")
Phase = Literal["train", "evaluate", "generate"]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


class Document(TypedDict):
    """One document of the corpus: its id there, and whether it took part in the training."""

    id: str
    member: bool


@dataclass(frozen=True, eq=False)
class TruthRecord:
    """Truth of one FORWARD frame. `order` is the position of a row in its text, `label` is -100 where there is none,
    `document` an index into the documents table or -1. Rows that are not real keep what their decoy stands for, or -1.
    """

    session_hash: str
    step: int
    forward_digest: str
    phase: Phase
    real: BoolArray
    order: Int32Array
    token: Int32Array
    label: Int32Array
    document: Int32Array

    def __post_init__(self) -> None:
        """ValueError unless the arrays have one shape [N, R] and the types above. Tells shapes, never values."""
        if self.phase not in _PHASES:
            raise ValueError(f"phase {self.phase!r} is none of {', '.join(_PHASES)}")
        if self.step < 1 or not _DIGEST.fullmatch(self.forward_digest):
            raise ValueError(f"step {self.step} or its digest is not acceptable")
        if self.real.ndim != 2 or self.real.dtype != np.bool_:
            raise ValueError(f"real is {self.real.dtype} {list(self.real.shape)}, expected bool [N, R]")
        for name in _INTEGER_FIELDS:
            array = getattr(self, name)
            if array.shape != self.real.shape or array.dtype != np.int32:
                raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, expected int32 {list(self.real.shape)}")


@dataclass(frozen=True)
class Truth:
    """An opened truth file. `records` opens each record when it is asked for; `texts` are those that were generated."""

    records: Mapping[tuple[str, int], TruthRecord]
    documents: list[Document]
    facts: dict[str, Any]
    is_complete: bool
    texts: list[TextTruth] = field(default_factory=list)


class TruthWriter(ClosesOrAbandons):
    """Writes a new truth file; RecordingError when it exists or cannot be written. Any thread may add."""

    def __init__(self, path: Path, recipient: X25519PublicKey | Path, facts: Mapping[str, Any] | None = None) -> None:
        key = load_sealing_public_key(recipient) if isinstance(recipient, Path) else recipient
        self._stream = SealedStreamWriter(path, key, TRUTH_PURPOSE)
        self._lock = threading.Lock()
        self._num_documents = 0
        if facts:
            self.add_facts(facts)

    def add(self, record: TruthRecord) -> None:
        """Appends the truth of one frame, before the frame is sent."""
        head = {
            "session_hash": record.session_hash,
            "step": record.step,
            "forward_digest": record.forward_digest,
            "phase": record.phase,
        }
        arrays = {name: np.ascontiguousarray(getattr(record, name)) for name in ("real", *_INTEGER_FIELDS)}
        self._write("record", head, safetensors.numpy.save(arrays))

    def add_documents(self, documents: Sequence[Mapping[str, Any]]) -> int:
        """Appends documents to the table; returns the index of the first."""
        table = [{"id": str(document["id"]), "member": bool(document["member"])} for document in documents]
        with self._lock:
            first = self._num_documents
            self._stream.write(_pack("documents", {"documents": table}))
            self._num_documents += len(table)
        return first

    def add_text(self, text: TextTruth) -> None:
        """Appends a whole text, once its answer is known."""
        self._write("text", text.head(), text.arrays())

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Adds plain values that the scorer needs, such as the size of the vocabulary."""
        self._write("facts", {"facts": dict(facts)})

    def close(self) -> None:
        """Completes the file."""
        self._stream.close()

    def abandon(self) -> None:
        """Closes the file and leaves it incomplete."""
        self._stream.abandon()

    def _write(self, kind: str, head: Mapping[str, Any], arrays: bytes = b"") -> None:
        with self._lock:
            self._stream.write(_pack(kind, head, arrays))


def read_truth(path: Path, key: X25519PrivateKey | Path) -> Truth:
    """Opens a truth file. SealError for another key, changed bytes, or two records of one step that differ."""
    stream = SealedStream(path, load_sealing_private_key(key) if isinstance(key, Path) else key, TRUTH_PURPOSE)
    index = _Index(path)
    for sealed in stream.records():
        index.add(sealed)
    records = _Records(stream, index.places, path)
    return Truth(records, index.documents, index.facts, stream.is_complete, index.texts)


class _Index:
    """What one pass over the file gives: the tables, and where each record lies."""

    def __init__(self, path: Path) -> None:
        self.documents: list[Document] = []
        self.facts: dict[str, Any] = {}
        self.texts: list[TextTruth] = []
        self.places: dict[tuple[str, int], tuple[int, int]] = {}
        self._digests: dict[tuple[str, int], str] = {}
        self._path = path

    def add(self, sealed: SealedRecord) -> None:
        kind, head, arrays = unpack(sealed.plaintext, self._path)
        try:
            if kind == "documents":
                self.documents.extend(documents_of(head, self._path))
            elif kind == "text":
                self.texts.append(read_text(head, arrays))
            elif kind == "facts":
                self.facts.update(head["facts"])
            else:
                self._add_place((head["session_hash"], head["step"]), head["forward_digest"], sealed)
        except (KeyError, TypeError, ValueError, SafetensorError):
            raise _malformed(self._path) from None

    def _add_place(self, step: tuple[str, int], digest: str, sealed: SealedRecord) -> None:
        if self._digests.setdefault(step, digest) != digest:
            raise SealError(
                f"{self._path} has two different records of step {step[1]} in session {step[0]}",
                remedy="record each run into a folder of its own",
            )
        self.places.setdefault(step, (sealed.number, sealed.offset))


class _Records(Mapping[tuple[str, int], TruthRecord]):
    """Records by (session hash, step); holds places in the file, not arrays."""

    def __init__(self, stream: SealedStream, places: dict[tuple[str, int], tuple[int, int]], path: Path) -> None:
        self._stream = stream
        self._places = places
        self._path = path

    def __getitem__(self, step: tuple[str, int]) -> TruthRecord:
        number, offset = self._places[step]
        _, head, arrays = unpack(self._stream.read(number, offset), self._path)
        return make_record(head, arrays, self._path)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _pack(kind: str, head: Mapping[str, Any], arrays: bytes = b"") -> bytes:
    text = json.dumps({"kind": kind, **head}, allow_nan=False).encode("utf-8")
    return _HEAD_LENGTH.pack(len(text)) + text + arrays


def documents_of(head: Mapping[str, Any], path: Path) -> list[Document]:
    """The documents that one record adds to the table; SealError when it is malformed."""
    try:
        return [{"id": one["id"], "member": one["member"]} for one in head["documents"]]
    except (KeyError, TypeError):
        raise _malformed(path) from None


def make_record(head: Mapping[str, Any], arrays: bytes, path: Path) -> TruthRecord:
    """The truth of one frame from its parts; SealError when it is malformed."""
    try:
        values: dict[str, Any] = {**head, **safetensors.numpy.load(arrays)}
        return TruthRecord(**values)
    except (TypeError, ValueError, SafetensorError):
        raise _malformed(path) from None


def unpack(plaintext: bytes, path: Path) -> tuple[str, dict[str, Any], bytes]:
    """Kind, head and arrays of one opened record."""
    try:
        (length,) = _HEAD_LENGTH.unpack_from(plaintext)
        end = _HEAD_LENGTH.size + length
        head = json.loads(plaintext[_HEAD_LENGTH.size : end])
        return head.pop("kind"), head, plaintext[end:]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise _malformed(path) from None


def _malformed(path: Path) -> SealError:
    return SealError(f"{path} holds a record that is no truth record", remedy="use the splitwire that wrote it")
