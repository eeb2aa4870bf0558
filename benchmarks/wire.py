"""What framing costs in bytes, and how fast frames and captures are written against plain copies and plain files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.measure import Row, alternate, ratio_of_medians
from splitwire.bundles import BundleWriter, WireRecord
from splitwire.frames import FrameAssembler, encode_frame, payload_bytes, wire_dtype
from splitwire.v1 import channels_pb2, stack_pb2

_SHAPE = (16, 80, 64)
_MEBI = 1 << 20


def rows(folder: Path, *, mebibytes: int, rounds: int) -> Iterator[Row]:
    """Bytes by dtype, the time of encoding and decoding, and the speed of capture."""
    for name in ("fp32", "bf16", "fp16", "int8"):
        yield _overhead(name)
    yield _codec(rounds)
    yield _capture(folder, mebibytes, rounds)


def _overhead(name: str) -> Row:
    dtype = wire_dtype(name)
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=1, dtype=dtype)
    sent = sum(len(message) for message in encode_frame(header, torch.ones(_SHAPE)))
    raw = payload_bytes(dtype, _SHAPE)
    value = sent / raw
    label = f"wire bytes, {name}, 16 frames of 80 x 64"
    return Row(label, "payload", value, "ratio", "<= 1.01", value <= 1.01, {"bytes": sent, "raw": raw})


def _codec(rounds: int) -> Row:
    tensor = torch.randn(64 * _MEBI // 4).reshape(-1, 1024)
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=1, dtype=stack_pb2.WIRE_DTYPE_FP32)

    def crossing() -> None:
        assembler = FrameAssembler()
        for message in encode_frame(header, tensor):
            assembler.feed(stack_pb2.ExchangeRequest.FromString(message).frame)

    copied, framed = alternate(tensor.clone, crossing, rounds=rounds)
    numbers = {"mebibytes_per_second": 64 / statistics.median(framed)}
    return Row("encode and decode 64 MiB", "one copy", ratio_of_medians(framed, copied), "times", numbers=numbers)


def _capture(folder: Path, mebibytes: int, rounds: int) -> Row:
    messages = [bytes(torch.randint(256, (_MEBI,), dtype=torch.uint8).numpy()) for _ in range(16)]
    numbers = iter(range(1 << 30))

    def capture() -> None:
        writer = BundleWriter(folder / f"capture-{next(numbers)}", recorder="bench", settings={})
        for index in range(mebibytes):
            now = time.time_ns()
            writer.write(
                WireRecord(
                    hop=channels_pb2.HOP_FORWARD,
                    direction="request",
                    session_hash="0" * 16,
                    message=messages[index % 16],
                    sent_ns=now,
                    received_ns=now,
                    kind="ExchangeRequest",
                )
            )
        writer.close()

    def plain() -> None:
        with (folder / f"plain-{next(numbers)}").open("wb") as file:
            for index in range(mebibytes):
                file.write(messages[index % 16])

    written, captured = alternate(plain, capture, rounds=rounds)
    speeds = {
        "capture_mb_per_second": mebibytes * _MEBI / 1e6 / statistics.median(captured),
        "plain_mb_per_second": mebibytes * _MEBI / 1e6 / statistics.median(written),
    }
    value = ratio_of_medians(written, captured)
    return Row("capture write speed", "a plain file", value, "ratio", numbers=speeds)
