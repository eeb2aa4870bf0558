"""What a peer learns when the node itself fails: nothing but that it did."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from splitwire.errors import ModelError
from splitwire.v1 import stack_pb2
from ucn.status import INTERNAL_TEXT

MARKER = "marker-7f3a-secret-content"
TRAIN, CACHED = stack_pb2.COMPUTE_MODE_TRAIN, stack_pb2.COMPUTE_MODE_CACHED


def _fail(_rows: torch.Tensor, _call: Any) -> torch.Tensor:
    raise ValueError(MARKER)


@pytest.fixture
def failing(kit: Any, start_server: Any, connect: Any) -> tuple[Any, Any]:
    """A node whose stacks raise an unknown exception, and a client."""
    node = kit.node(lambda: kit.stack(_fail))
    return node, connect(start_server(node.build()))


def test_the_text_of_an_unknown_exception_reaches_neither_peer_nor_log(failing: Any, kit: Any, logs: list[Any]) -> None:
    """INTERNAL with a fixed text; the log names class and place, and the marker shows up nowhere."""
    _, client = failing
    stream = client.stream(client.open(kit.request()).session_id)
    with pytest.raises(kit.refusal) as refusal:
        stream.forward(1, kit.rows())
    assert (refusal.value.code, refusal.value.error) == ("INTERNAL", "InternalError")
    assert refusal.value.details == INTERNAL_TEXT
    assert MARKER not in refusal.value.remedy
    reported = [entry for entry in logs if entry["event"] == "internal_error"]
    assert reported[0]["error"] == "ValueError"
    assert any("test_failures.py" in place for place in reported[0]["place"])
    assert MARKER not in repr(logs)


def test_a_session_that_failed_refuses_everything_but_its_end(failing: Any, kit: Any) -> None:
    """After an unexpected failure the stack's state is unknown, so nothing is computed with it any more."""
    node, client = failing
    session_id = client.open(kit.request()).session_id
    with pytest.raises(kit.refusal):
        client.stream(session_id).forward(1, kit.rows())
    with pytest.raises(kit.refusal, match="failed at step 1") as refusal:
        client.stream(session_id).forward(1, kit.rows())
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "StateError")
    assert node.stacks[0].calls == ["forward 1"]
    client.close_session(session_id)


def test_an_operators_error_stays_inside(start_server: Any, connect: Any, kit: Any) -> None:
    """A model error may name a path on this machine: the peer gets the fixed text."""

    def prepare() -> Any:
        raise ModelError(f"no file {MARKER}")

    client = connect(start_server(kit.node(prepare).build()))
    with pytest.raises(kit.refusal) as refusal:
        client.open(kit.request())
    assert (refusal.value.code, refusal.value.details) == ("INTERNAL", INTERNAL_TEXT)


def test_a_device_without_memory_is_a_limit(start_server: Any, connect: Any, kit: Any) -> None:
    """The peer is told to send less; the session is spent."""

    def exhaust(_rows: torch.Tensor, _call: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError(MARKER)

    client = connect(start_server(kit.node(lambda: kit.stack(exhaust)).build()))
    session_id = client.open(kit.request()).session_id
    with pytest.raises(kit.refusal, match="no memory left") as refusal:
        client.stream(session_id).forward(1, kit.rows())
    assert (refusal.value.code, refusal.value.error) == ("RESOURCE_EXHAUSTED", "LimitError")
    assert MARKER not in refusal.value.details
    with pytest.raises(kit.refusal, match="failed at step 1"):
        client.stream(session_id).forward(2, kit.rows())


def test_a_session_that_does_not_fit_the_device_is_a_limit(start_server: Any, connect: Any, kit: Any) -> None:
    """A copy of the layers may be too large: the peer is told to wait, and no session is left behind."""

    def prepare() -> Any:
        raise torch.OutOfMemoryError(MARKER)

    running = start_server(kit.node(prepare).build())
    with pytest.raises(kit.refusal, match="no memory left for the session") as refusal:
        connect(running).open(kit.request())
    assert (refusal.value.code, refusal.value.error) == ("RESOURCE_EXHAUSTED", "LimitError")
    assert len(running.server.table) == 0


def test_a_stack_that_does_not_close_is_reported_and_forgotten(
    start_server: Any, connect: Any, kit: Any, logs: list[Any]
) -> None:
    """The session's place is free whatever its stack does at its end."""

    def refuse() -> None:
        raise ValueError(MARKER)

    def prepare() -> Any:
        stack = kit.stack()
        stack.close = refuse
        return stack

    running = start_server(kit.node(prepare).build())
    client = connect(running)
    client.close_session(client.open(kit.request()).session_id)
    assert len(running.server.table) == 0
    assert [entry["error"] for entry in logs if entry["event"] == "session_close_failed"] == ["ValueError"]
    assert MARKER not in repr(logs)


@pytest.mark.parametrize(("mode", "calls"), [(TRAIN, ["forward 1", "discard 1"]), (CACHED, ["forward 1"])])
def test_rows_that_became_nan_are_not_sent(
    start_server: Any, connect: Any, kit: Any, mode: int, calls: list[str]
) -> None:
    """The step counts as taken, its graph is dropped, and the session goes on."""
    node = kit.node(lambda: kit.stack(lambda rows, call: rows * (math.nan if call.step == 1 else 2)))
    client = connect(start_server(node.build()))
    session_id = client.open(kit.request()).session_id
    with pytest.raises(kit.refusal, match="RETURN rows of step 1 contain NaN") as refusal:
        client.stream(session_id).forward(1, kit.rows(), compute_mode=mode)
    assert refusal.value.error == "FrameError"
    assert node.stacks[0].calls == calls
    stream = client.stream()
    assert stream.attach(session_id) == 1
    torch.testing.assert_close(stream.forward(2, kit.rows()), kit.rows() * 2)


def test_an_overflow_of_the_wire_dtype_is_not_sent(start_server: Any, connect: Any, kit: Any) -> None:
    """Finite rows that become Inf in fp16 are refused on this side already."""
    node = kit.node(lambda: kit.stack(lambda rows, _call: rows * 0 + 1e30))
    client = connect(start_server(node.build()))
    stream = client.stream(client.open(kit.request(response_dtype=stack_pb2.WIRE_DTYPE_FP16)).session_id)
    with pytest.raises(kit.refusal, match="NaN or Inf"):
        stream.forward(1, kit.rows())


def test_one_line_a_call_says_who_what_and_how_long(scripted: Any, kit: Any, logs: list[Any]) -> None:
    """Method, peer, code, seconds, bytes and session hash; never the session's id."""
    _, running, client = scripted
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    stream.forward(1, kit.rows())
    stream.finish()
    client.close_session(session_id)
    running.stop()
    calls = {entry["method"].rpartition("/")[2]: entry for entry in logs if entry["event"] == "call"}
    assert set(calls) == {"OpenSession", "Exchange", "CloseSession"}
    exchange = calls["Exchange"]
    assert (exchange["peer"], exchange["code"], exchange["requests"]) == ("tln.splitwire", "OK", 1)
    assert exchange["bytes_in"] > kit.rows().nbytes
    assert exchange["bytes_out"] > kit.rows().nbytes
    assert len({entry["session"] for entry in calls.values()}) == 1
    assert session_id not in repr(logs)
