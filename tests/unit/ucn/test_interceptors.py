"""What happens around a call, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog

from splitwire.errors import StateError
from ucn import call as calls
from ucn.interceptors.sanitise import sanitise
from ucn.interceptors.wrapping import wrap


class Context:
    """Records what a handler does to its call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted: tuple[Any, ...] = ()

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def abort(self, *status: Any) -> None:
        self.aborted = status
        raise grpc.aio.AbortError

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


def _run(error: BaseException, expected: type[BaseException]) -> tuple[Context, list[Any]]:
    context = Context()

    async def fail() -> None:
        raise error

    async def main() -> None:
        calls.begin("/x")
        with pytest.raises(expected):
            await sanitise("/x", fail, context)

    with structlog.testing.capture_logs() as logs:
        asyncio.run(main())
    return context, list(logs)


def test_a_peers_error_aborts_with_its_status_and_is_no_news() -> None:
    """The call's own line says enough: nothing else is logged."""
    context, logs = _run(StateError("not now", remedy="later"), grpc.aio.AbortError)
    assert context.aborted[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "not now. later")
    assert logs == []


def test_a_bug_is_logged_by_class_and_place() -> None:
    """Never by its text."""
    context, logs = _run(KeyError("secret"), grpc.aio.AbortError)
    assert context.aborted[0] is grpc.StatusCode.INTERNAL
    assert logs[0]["error"] == "KeyError"
    assert "secret" not in repr((context.aborted, logs))


def test_a_peer_that_is_gone_is_not_a_bug() -> None:
    """Reading or writing fails when the connection is lost: the call counts as cancelled."""
    context, logs = _run(grpc.aio.InternalError("batch"), asyncio.CancelledError)
    assert (context.aborted, logs) == ((), [])


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_handlers_of_every_arity_are_wrapped(kind: str) -> None:
    """Generators, plain coroutines and single answers come through unchanged, with the function around them."""
    seen: list[str] = []

    async def around(method: str, call: Any, _context: Any) -> Any:
        seen.append(method)
        return await call()

    async def single(request: bytes, _context: Any) -> bytes:
        return request + b"!"

    async def several(request: bytes, _context: Any) -> Any:
        yield request
        yield b"2"

    behaviour = several if kind.endswith("stream") else single
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    wrapped = wrap(make(behaviour, request_deserializer=len, response_serializer=bytes), "/a/B", around)
    context = Context()
    answer = asyncio.run(getattr(wrapped, kind)(b"1", context))
    assert seen == ["/a/B"]
    assert (wrapped.request_deserializer, wrapped.response_serializer) == (len, bytes)
    if kind.endswith("stream"):
        assert (answer, context.written) == (None, [b"1", b"2"])
    else:
        assert answer == b"1!"
