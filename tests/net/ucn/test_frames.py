"""Frames that break the contract are refused before they cost anything, and the session goes on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.v1 import channels_pb2, stack_pb2
from ucn.settings import LimitSettings

FORWARD, BACKWARD = channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD
TRAIN, CACHED = stack_pb2.COMPUTE_MODE_TRAIN, stack_pb2.COMPUTE_MODE_CACHED


def _edited(messages: list[bytes], index: int, **header: Any) -> list[bytes]:
    """The messages with header fields of one of them changed by hand, as an honest encoder would not."""
    message = stack_pb2.ExchangeRequest.FromString(messages[index])
    for name, value in header.items():
        if name == "shape":
            message.frame.header.shape[:] = value
        elif name == "data":
            message.frame.data = value
        else:
            setattr(message.frame.header, name, value)
    return [*messages[:index], message.SerializeToString(), *messages[index + 1 :]]


def _nan(kit: Any) -> list[bytes]:
    messages = kit.frame(FORWARD, 1, torch.ones(1, 1, 1) * torch.ones(1, 1, kit.width))
    return _edited(messages, 0, data=torch.full((kit.width,), math.nan).numpy().tobytes())


BAD_FRAMES: dict[str, tuple[Callable[[Any], list[bytes]], str, str]] = {
    "nan": (_nan, "NaN or Inf", "INVALID_ARGUMENT"),
    "reordered": (
        lambda kit: [kit.frame(FORWARD, 1, kit.rows(), chunk_bytes=64)[index] for index in (0, 2, 1)],
        "chunk 2 of step 1 came where chunk 1 was due",
        "INVALID_ARGUMENT",
    ),
    "headless": (
        lambda kit: kit.frame(FORWARD, 1, kit.rows(), chunk_bytes=64)[1:2],
        "without a frame header",
        "INVALID_ARGUMENT",
    ),
    "two at once": (
        lambda kit: [
            kit.frame(FORWARD, 1, kit.rows(), chunk_bytes=64)[0],
            kit.frame(FORWARD, 2, kit.rows(), chunk_bytes=64)[0],
        ],
        "began before step 1 was complete",
        "INVALID_ARGUMENT",
    ),
    "control inside": (
        lambda kit: [
            kit.frame(FORWARD, 1, kit.rows(), chunk_bytes=64)[0],
            kit.control(2, zero_grad=stack_pb2.ZeroGrad()),
        ],
        "not due inside a frame",
        "FAILED_PRECONDITION",
    ),
    "size lie": (
        lambda kit: _edited(kit.frame(FORWARD, 1, kit.rows()), 0, total_bytes=1 << 40),
        "does not match shape",
        "INVALID_ARGUMENT",
    ),
    "oversized": (
        lambda kit: _edited(
            kit.frame(FORWARD, 1, kit.rows()), 0, shape=[1, 1 << 17, kit.width], total_bytes=4 * kit.width << 17
        ),
        "exceeds the limit",
        "RESOURCE_EXHAUSTED",
    ),
    "too many rows": (
        lambda kit: _edited(kit.frame(FORWARD, 1, kit.rows()), 0, shape=[1 << 30, 1 << 30, kit.width]),
        "exceed the limit",
        "RESOURCE_EXHAUSTED",
    ),
    "wrong dtype": (
        lambda kit: kit.frame(FORWARD, 1, kit.rows(), dtype=stack_pb2.WIRE_DTYPE_BF16),
        "in bf16 and the session in fp32",
        "INVALID_ARGUMENT",
    ),
    "wrong width": (lambda kit: kit.frame(FORWARD, 1, torch.ones(1, 2, 5)), "has shape", "INVALID_ARGUMENT"),
    "two dimensions": (lambda kit: kit.frame(FORWARD, 1, torch.ones(2, kit.width)), "has shape", "INVALID_ARGUMENT"),
    "no mode": (lambda kit: kit.frame(FORWARD, 1, kit.rows(), compute_mode=0), "compute_mode 0", "INVALID_ARGUMENT"),
    "return hop": (
        lambda kit: kit.frame(channels_pb2.HOP_RETURN, 1, kit.rows()),
        "does not come from a trusted node",
        "INVALID_ARGUMENT",
    ),
    "cache without mode": (
        lambda kit: kit.frame(FORWARD, 1, kit.rows(), cache_id=3),
        "names a cache",
        "INVALID_ARGUMENT",
    ),
    "row lengths without side": (
        lambda kit: kit.frame(FORWARD, 1, kit.rows(), row_lengths=[1, 2]),
        "no padding side",
        "INVALID_ARGUMENT",
    ),
    "side without row lengths": (
        lambda kit: kit.frame(FORWARD, 1, kit.rows(), padding_side=stack_pb2.PADDING_SIDE_LEFT),
        "no row_lengths",
        "INVALID_ARGUMENT",
    ),
    "long row": (
        lambda kit: kit.frame(FORWARD, 1, kit.rows(), row_lengths=[1, 4], padding_side=stack_pb2.PADDING_SIDE_RIGHT),
        "do not fit 2 sequences of 3 positions",
        "INVALID_ARGUMENT",
    ),
    "backward of nothing": (
        lambda kit: kit.frame(BACKWARD, 1, kit.rows(), compute_mode=0),
        "finds no kept graph",
        "FAILED_PRECONDITION",
    ),
    "control without step": (
        lambda kit: [kit.control(0, zero_grad=stack_pb2.ZeroGrad())],
        "no step or no action",
        "INVALID_ARGUMENT",
    ),
    "control without action": (lambda kit: [kit.control(1)], "no step or no action", "INVALID_ARGUMENT"),
    "nothing": (lambda _kit: [b""], "payload None", "FAILED_PRECONDITION"),
    "garbage": (lambda _kit: [b"\xff\xff"], "are not a ExchangeRequest", "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_is_refused_and_the_session_goes_on(start_server: Any, connect: Any, kit: Any, name: str) -> None:
    """The stream ends with the right status, the stack is not touched, and the step may be sent again in order."""
    make, text, code = BAD_FRAMES[name]
    node = kit.node()
    client = connect(start_server(node.build(), limits=LimitSettings(max_frame_bytes=1 << 20)))
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    stream.send(*make(kit))
    with pytest.raises(kit.refusal, match=text) as refusal:
        stream.receive()
    assert refusal.value.code == code
    assert refusal.value.remedy
    assert node.stacks[0].calls == []
    again = client.stream()
    assert again.attach(session_id) == 0
    torch.testing.assert_close(again.forward(1, kit.rows()), kit.rows() * 2)


def test_a_message_over_the_chunk_limit_is_refused(scripted: Any, kit: Any) -> None:
    """gRPC itself stops a message that is larger than a chunk and its header."""
    _, _, client = scripted
    stream = client.stream(client.open(kit.request()).session_id)
    stream.send(*kit.frame(FORWARD, 1, torch.ones(1, 70_000, kit.width), chunk_bytes=2 << 20))
    with pytest.raises(kit.refusal) as refusal:
        stream.receive()
    assert refusal.value.code == "RESOURCE_EXHAUSTED"


def test_a_stream_that_ends_inside_a_frame_is_data_loss(scripted: Any, kit: Any) -> None:
    """Half a frame is not an answerable request."""
    node, _, client = scripted
    stream = client.stream(client.open(kit.request()).session_id)
    stream.send(kit.frame(FORWARD, 1, kit.rows(), chunk_bytes=64)[0])
    with pytest.raises(Exception, match="ended inside a frame") as ended:
        stream.finish()
    assert ended.value.code().name == "DATA_LOSS"
    assert node.stacks[0].calls == []


def test_a_stream_that_falls_silent_inside_a_frame_is_ended(start_server: Any, connect: Any, kit: Any) -> None:
    """A peer cannot hold a buffer for ever."""
    client = connect(start_server(kit.node().build(), frame_timeout_seconds=0.3))
    stream = client.stream(client.open(kit.request()).session_id)
    stream.send(kit.frame(FORWARD, 1, kit.rows(), chunk_bytes=64)[0])
    with pytest.raises(kit.refusal, match="nothing came inside a frame") as refusal:
        stream.receive()
    assert (refusal.value.code, refusal.value.error) == ("DATA_LOSS", "FrameError")


@pytest.mark.parametrize("first", ["frame", "garbage", "nothing", "late"])
def test_a_stream_must_begin_with_attach(start_server: Any, connect: Any, kit: Any, first: str) -> None:
    """Nothing else is read before the session is known."""
    stream = connect(start_server(kit.node().build(), attach_timeout_seconds=0.3)).stream()
    if first == "frame":
        stream.send(*kit.frame(FORWARD, 1, kit.rows()))
    elif first == "garbage":
        stream.send(b"\xff")
    elif first == "nothing":
        stream.send(None)
    with pytest.raises(kit.refusal) as refusal:
        stream.receive()
    assert refusal.value.code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT")


def test_a_second_attach_is_refused(scripted: Any, kit: Any) -> None:
    """One stream serves one session."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    with pytest.raises(kit.refusal, match="payload attach is not due here"):
        stream.attach(session_id)


def test_a_frame_of_many_chunks_arrives_whole(scripted: Any, kit: Any) -> None:
    """Large frames go through the threads that keep the event loop free."""
    _, _, client = scripted
    stream = client.stream(client.open(kit.request()).session_id)
    rows = torch.randn(1, 100_000, kit.width, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(stream.forward(1, rows, chunk_bytes=256 << 10), rows * 2)


@pytest.mark.parametrize("name", ["BF16", "FP16", "INT8_ROW"])
def test_frames_come_back_in_the_dtype_that_was_asked_for(scripted: Any, kit: Any, name: str) -> None:
    """request_dtype and response_dtype are independent of the dtype that computes."""
    _, _, client = scripted
    dtype = getattr(stack_pb2, f"WIRE_DTYPE_{name}")
    stream = client.stream(client.open(kit.request(request_dtype=dtype, response_dtype=dtype)).session_id)
    stream.send(*kit.frame(FORWARD, 1, kit.rows(), dtype=dtype))
    answer = stream.receive().frame
    assert answer.header.dtype == dtype
    assert answer.header.hop == channels_pb2.HOP_RETURN


def test_an_inference_session_takes_no_training(scripted: Any, kit: Any) -> None:
    """TRAIN frames and training controls are refused in it."""
    _, _, client = scripted
    session_id = client.open(kit.request(mode=stack_pb2.SESSION_MODE_INFERENCE)).session_id
    with pytest.raises(kit.refusal, match="TRAIN step in an inference session"):
        client.stream(session_id).forward(1, kit.rows(), compute_mode=TRAIN)
    with pytest.raises(kit.refusal, match="optimizer_step came in an inference session"):
        client.stream(session_id).control(1, optimizer_step=stack_pb2.OptimizerStep(learning_rate=1))


def test_a_peer_that_sends_ahead_is_not_read_ahead(start_server: Any, connect: Any, kit: Any) -> None:
    """While a step runs nothing more is read: what a peer sends fills its own window, not this node's memory."""
    started, may_end = threading.Event(), threading.Event()

    def slow(rows: torch.Tensor, _call: Any) -> torch.Tensor:
        started.set()
        assert may_end.wait(kit.wait_seconds)
        return rows[:, :1]

    running = start_server(kit.node(lambda: kit.stack(slow)).build())
    client = connect(running)
    stream = client.stream(client.open(kit.request()).session_id)
    rows = torch.ones(1, 30_000, kit.width)
    for step in range(1, 41):
        stream.send(*kit.frame(FORWARD, step, rows))
    assert started.wait(kit.wait_seconds)
    time.sleep(0.3)
    labels = {"hop": "FORWARD", "direction": "request"}
    read = running.server.registry.get_sample_value("splitwire_wire_bytes_total", labels)
    assert rows.nbytes <= read < 2 * rows.nbytes
    may_end.set()
    for _ in range(40):
        stream.receive()
