"""Small bundles: real frames of a real encoder, recorded through the real writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from splitwire.bundles import BundleWriter, WireRecord
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "0123456789abcdef"
_REQUESTS = (channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD)


@dataclass(frozen=True)
class Wire:
    """Makes messages and records as they would cross."""

    session: str = SESSION

    def messages(self, tensor: torch.Tensor, *, hop: int = channels_pb2.HOP_FORWARD, step: int = 1) -> list[bytes]:
        header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
        return list(encode_frame(header, tensor, chunk_bytes=64))

    def records(self, messages: Sequence[bytes], *, hop: int = channels_pb2.HOP_FORWARD) -> list[WireRecord]:
        request = hop in _REQUESTS
        kind = "ExchangeRequest" if request else "ExchangeResponse"
        return [
            WireRecord(hop, "request" if request else "response", self.session, message, 10 + n, 20 + n, kind)
            for n, message in enumerate(messages)
        ]

    def frame(self, tensor: torch.Tensor, *, hop: int = channels_pb2.HOP_FORWARD, step: int = 1) -> list[WireRecord]:
        return self.records(self.messages(tensor, hop=hop, step=step), hop=hop)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_audit_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def open_writer(tmp_path: Path, keys: Path) -> Callable[..., BundleWriter]:
    def make(name: str = "bundle", *, signer: str | None = "tln-recorder") -> BundleWriter:
        key = load_signing_key(keys / f"{signer}.key") if signer else None
        return BundleWriter(tmp_path / name, recorder="tln", settings={"frame": {"rows": 4}}, signing_key=key)

    return make
