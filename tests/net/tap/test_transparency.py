"""Between the two nodes the tap changes nothing: bytes, metadata, status, deadlines, ends and pace pass through."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from auditor.tap.upstream import Upstream as TapUpstream
from splitwire import wire
from splitwire.v1 import stack_pb2

from .conftest import ATTACH, SESSION, START_SECONDS, TRAILING, Script, control


def test_a_call_passes_with_its_bytes_and_metadata(client: Any, upstream: Any) -> None:
    request = stack_pb2.OpenSessionRequest(protocol_version=1).SerializeToString() + b"\xfa\x3f\x01x"  # unknown field
    response, call = client.unary_unary(wire.OPEN_SESSION).with_call(
        request, timeout=10, metadata=(("note", "1"), ("note-bin", b"\x00"))
    )
    assert stack_pb2.OpenSessionResponse.FromString(response).session_id == SESSION
    assert upstream.script.received[wire.OPEN_SESSION] == [request]
    assert ("note", "1") in upstream.script.metadata
    assert ("note-bin", b"\x00") in upstream.script.metadata
    assert ("initial", "kept") in [tuple(item) for item in call.initial_metadata()]
    assert [tuple(item) for item in call.trailing_metadata()] == [("trailing-bin", b"\x00\x01")]
    assert call.code() == grpc.StatusCode.OK


def test_the_status_of_a_failed_call_passes_with_text_and_trailers(client: Any, stream: Callable[..., Any]) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    exchange.send(control(Script.ABORT))
    with pytest.raises(grpc.RpcError) as caught:
        exchange.receive()
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert caught.value.details() == "step 2 is stale: \u00fcber. Send step 3"
    assert [tuple(item) for item in caught.value.trailing_metadata()] == list(TRAILING)


def test_messages_of_a_stream_pass_in_order(client: Any, upstream: Any, stream: Callable[..., Any]) -> None:
    exchange = stream(client)
    messages = [ATTACH, *(control(Script.ECHO) + bytes([0x2A, 1, index]) for index in range(100))]
    for message in messages:
        exchange.send(message)
    assert [exchange.receive() for _ in messages] == messages
    assert upstream.script.received[wire.EXCHANGE] == messages


def test_half_close_passes(client: Any, stream: Callable[..., Any]) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    exchange.half_close()
    with pytest.raises(StopIteration):
        exchange.receive()
    assert exchange.call.code() == grpc.StatusCode.OK


def test_what_remains_of_the_deadline_passes_and_ends_both_calls(
    client: Any, upstream: Any, stream: Callable[..., Any]
) -> None:
    exchange = stream(client, 4)
    exchange.ask(ATTACH)
    assert 0 < upstream.script.seconds_left <= 4
    exchange.send(control(Script.HANG))
    with pytest.raises(grpc.RpcError) as caught:
        exchange.receive()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert upstream.script.ended.wait(START_SECONDS)


def test_a_call_without_a_deadline_has_none_upstream(client: Any, upstream: Any, stream: Callable[..., Any]) -> None:
    stream(client, None).ask(ATTACH)
    assert upstream.script.seconds_left > 1e9  # what grpc says when there is none


def test_a_trusted_node_that_leaves_ends_the_call_upstream(
    client: Any, upstream: Any, stream: Callable[..., Any]
) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    assert not upstream.script.ended.is_set()
    exchange.call.cancel()
    assert upstream.script.ended.wait(START_SECONDS)


def test_an_untrusted_node_that_dies_ends_the_call_as_unavailable(
    client: Any, upstream: Any, stream: Callable[..., Any]
) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    exchange.send(control(Script.HANG))
    upstream.server.stop(0).wait()
    with pytest.raises(grpc.RpcError) as caught:
        exchange.receive()
    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_an_untrusted_node_that_comes_back_is_reached_again_soon(
    start_upstream: Any, start_tap: Any, connect: Any, stream: Callable[..., Any]
) -> None:
    first = start_upstream()
    channel = connect(start_tap(first).address)
    stream(channel).ask(ATTACH)
    first.server.stop(0).wait()
    with pytest.raises(grpc.RpcError) as caught:
        stream(channel).ask(ATTACH)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    start_upstream(first.address)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            assert stream(channel).ask(ATTACH) == ATTACH
            break
        except grpc.RpcError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_health_is_that_of_the_untrusted_node(client: Any, upstream: Any) -> None:
    stub = health_pb2_grpc.HealthStub(client)
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=10)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    upstream.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


def test_a_method_that_would_not_be_recorded_is_refused(client: Any, upstream: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.unary_unary(f"/{wire.SERVICE}/Upload")(b"secret", timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "could not record" in caught.value.details()
    assert upstream.script.received == {}


def test_a_trusted_node_that_does_not_read_slows_the_untrusted_one_down(
    client: Any, upstream: Any, stream: Callable[..., Any]
) -> None:
    exchange = stream(client)
    exchange.ask(ATTACH)
    exchange.send(control(Script.FLOOD))
    exchange.receive()
    settled = -1
    while settled != (settled := upstream.script.num_flooded):
        time.sleep(0.5)
    assert settled < 128  # MiB in the buffers of both connections, of 512 that were to be sent
    for _ in range(511):
        exchange.receive()
    assert exchange.receive() == control(Script.FLOOD)


def test_a_message_over_the_contracts_limit_is_refused(client: Any, upstream: Any, stream: Callable[..., Any]) -> None:
    exchange = stream(client)
    exchange.send(bytes(wire.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(grpc.RpcError) as caught:
        exchange.receive()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert wire.EXCHANGE not in upstream.script.received


def test_the_text_of_an_unexpected_error_stays_in_the_process(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("marker-4711")

    monkeypatch.setattr(TapUpstream, "call", fail)
    with pytest.raises(grpc.RpcError) as caught:
        client.unary_unary(wire.OPEN_SESSION)(b"", timeout=10)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error of the tap"
