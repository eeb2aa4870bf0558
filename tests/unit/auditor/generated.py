"""A bundle of generation, as a trusted node and its recorder write it, and the ways in which one can be wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splitwire.backbone import ModelSettings, identity, load_head, load_middle
from splitwire.bundles import BundleWriter, TextTruth, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "6e5e107a6e5e107a"
Change = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class Generated:
    """Where it lies, and the tokens of its texts."""

    bundle: Path
    key: Path
    texts: list[np.ndarray]


def write_generation(
    folder: Path,
    model: ModelSettings,
    texts: Sequence[Sequence[int]],
    *,
    num_new: int = 2,
    change_rows: Change = lambda rows, _: rows,
    told: Callable[[np.ndarray, int], np.ndarray] = lambda tokens, _: tokens,
    repeat_caches: bool = False,
) -> Generated:
    """Each text in a cache of its own (one cache id for all with `repeat_caches`): all but the last `num_new` tokens as
    its prompt, then the next ones alone; the last never crosses. `change_rows` gives what crosses in place of the rows
    [T, H] of text number n, `told` what the truth says in place of its tokens [T].
    """
    keys = folder / "keys"
    write_audit_keys(keys)
    bundle = folder / "bundle"
    settings = {"settings": {"model": {"source": model.source}}}
    writer = BundleWriter(
        bundle, recorder="tln", settings=settings, signing_key=load_signing_key(keys / "tln-recorder.key")
    )
    tokens = [np.asarray(text, dtype=np.int32) for text in texts]
    with TruthWriter(bundle / "truth.sealed", keys / "audit.pub", {"vocabulary_size": 264}) as truth:
        truth.add_documents([{"id": f"text-{number + 1}", "member": False} for number in range(len(tokens))])
        opening = stack_pb2.OpenSessionRequest(
            protocol_version=1, stack_kind=stack_pb2.STACK_KIND_TRANSFORMER, model=identity(model)
        )
        _write(writer, channels_pb2.HOP_CONTROL, "OpenSessionRequest", opening.SerializeToString(), 0)
        session = _Session(writer, truth, load_head(model), load_middle(model))
        for number, text in enumerate(tokens):
            session.cache_id = 1 if repeat_caches else number + 1
            session.text(number, text, num_new, change_rows, told)
    writer.close(num_dropped=0)
    return Generated(bundle, keys / "audit.key", [text.astype(np.int64) for text in tokens])


class _Session:
    """Steps of one session."""

    def __init__(self, writer: BundleWriter, truth: TruthWriter, head: Any, middle: Any) -> None:
        self._writer, self._truth, self._head, self._middle = writer, truth, head, middle
        self._step, self.cache_id = 0, 1

    @torch.no_grad()
    def text(self, number: int, text: np.ndarray, num_new: int, change: Change, told: Any) -> None:
        """One text, and the end of its cache."""
        rows = self._head(torch.from_numpy(text[:-1].astype(np.int64))[None])
        returned = self._middle(rows)[0]
        crossed, said = change(rows[0], number), told(text, number)
        num_prompt = len(text) - num_new
        ends = [0, *range(num_prompt, len(text))]
        for start, end in itertools.pairwise(ends):
            self._step += 1
            digest = self._frame(channels_pb2.HOP_FORWARD, "ExchangeRequest", crossed[None, start:end])
            self._frame(channels_pb2.HOP_RETURN, "ExchangeResponse", returned[None, start:end])
            self._tell(number, said, start, end, digest)
        self._truth.add_text(TextTruth(number, num_prompt, said))
        self._step += 1
        release = stack_pb2.Control(step=self._step, cache_release=stack_pb2.CacheRelease(cache_id=self.cache_id))
        message = stack_pb2.ExchangeRequest(control=release).SerializeToString()
        _write(self._writer, channels_pb2.HOP_CONTROL, "ExchangeRequest", message, self._step)

    def _frame(self, hop: Any, kind: str, rows: torch.Tensor) -> str:
        header = stack_pb2.FrameHeader(hop=hop, step=self._step, dtype=stack_pb2.WIRE_DTYPE_FP32)
        if hop == channels_pb2.HOP_FORWARD:
            header.compute_mode, header.cache_id = stack_pb2.COMPUTE_MODE_CACHED, self.cache_id
        messages = list(encode_frame(header, rows.contiguous()))
        for message in messages:
            _write(self._writer, hop, kind, message, self._step)
        return frame_digest(messages)

    def _tell(self, number: int, text: np.ndarray, start: int, end: int, digest: str) -> None:
        token = text[None, start:end].copy()
        label = np.full_like(token, -100)
        label[0, :-1] = token[0, 1:]
        order = np.arange(start, end, dtype=np.int32)[None]
        document = np.full_like(token, number)
        real = np.ones(token.shape, dtype=bool)
        self._truth.add(TruthRecord(SESSION, self._step, digest, "generate", real, order, token, label, document))


def _write(writer: BundleWriter, hop: Any, kind: str, message: bytes, step: int) -> None:
    direction: Any = "response" if kind.endswith("Response") else "request"
    writer.write(WireRecord(hop, direction, SESSION, message, step, step, kind))
