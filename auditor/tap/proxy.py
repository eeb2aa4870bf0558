"""Forwards one call: bytes first, records after.

Every method is served and called as a stream of serialized messages, which on the wire is the same for all
cardinalities, so nothing is re-serialized. What passes unchanged: messages, metadata, status code and text, trailing
metadata, half-close, and what remains of the deadline. When one side is gone the call to the other is cancelled. A side
that does not read stops the tap from reading the other one; never more than one message a direction is in its hands.

A message that was handed to gRPC is recorded even when the write then failed: its bytes may have crossed.

An active tap (auditor/tap/rewriting.py) holds a returned frame until it is whole and passes on another payload; what is
recorded is what the trusted node received.

Refused: peers that are not on the allow-list, and methods outside the contract and the health service, because their
bytes would cross without being recorded. An unexpected error reaches the peer as a fixed text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from auditor.tap.metrics import TapMetrics
from auditor.tap.observer import CallObserver, Seen, Sink
from auditor.tap.rewriting import PassThrough, Rewriter
from auditor.tap.upstream import Upstream
from splitwire import wire
from splitwire.errors import AuthError, PeerError, UnavailableError
from splitwire.logging import get_logger
from splitwire.tls import require_peer

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
_METHODS = frozenset({wire.OPEN_SESSION, wire.EXCHANGE, wire.CLOSE_SESSION, _HEALTH_CHECK, _HEALTH_WATCH})
_NOT_SERVING = b"\x08\x02"  # HealthCheckResponse{status: NOT_SERVING}
_CUT_SECONDS = 1.0
_LOST_HERE = "Internal error from Core"
"""What grpc.aio itself says of a call whose connection went while it wrote; no peer sent it."""

_log = get_logger(__name__)


@dataclass(frozen=True)
class Ending:
    """How a call ended, as the trusted node is told."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, str | bytes], ...] = ()


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    """Serves every method of the contract by calling it upstream. Belongs to one event loop."""

    def __init__(
        self,
        upstream: Upstream,
        sink: Sink,
        metrics: TapMetrics,
        allowed: frozenset[str] | None,
        rewriter: Callable[[], Rewriter] = PassThrough,
    ) -> None:
        """`allowed` are the names that may connect; None for plaintext on loopback, where nobody has a name.

        `rewriter` makes what changes the responses of one exchange stream.
        """
        self._upstream = upstream
        self._sink = sink
        self._metrics = metrics
        self._allowed = allowed
        self._rewriter = rewriter
        self._running: set[Any] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        """The handler of any method name."""
        method = str(handler_call_details.method)

        async def handle(requests: Any, context: Any) -> None:
            await self._serve(method, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def drain(self, seconds: float) -> None:
        """Refuses new calls, lets the running ones end for so long, then ends them as UNAVAILABLE.

        A call that is stuck in writing to a peer that does not read may be left; ending the server ends it.
        """
        self._draining = True
        await self.wait_idle(seconds)
        self.cut()
        await self.wait_idle(_CUT_SECONDS)

    async def wait_idle(self, seconds: float) -> None:
        """Waits until no call runs, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def cut(self) -> None:
        """Ends the running calls at once."""
        self._draining = True
        for call in self._running:
            call.cancel()

    async def _serve(self, method: str, requests: Any, context: Any) -> None:
        started = time.monotonic()
        observer = CallObserver(method, self._sink)
        peer, ending = "", Ending(grpc.StatusCode.CANCELLED)
        self._metrics.active.inc()
        try:
            peer = self._admit(method, context)
            ending = await self._forward(method, requests, context, observer)
        except PeerError as error:
            ending = await self._refuse(method, error, context)
        except Exception:  # noqa: BLE001 - a bug must not send its text to the peer
            _log.exception("call failed in the tap", method=method)
            ending = Ending(grpc.StatusCode.INTERNAL, "internal error of the tap")
        finally:
            self._metrics.active.dec()
            self._metrics.count_call(_label(method), ending.code.name)
            _log.info(
                "call",
                method=_label(method),
                peer=peer,
                code=ending.code.name,
                seconds=round(time.monotonic() - started, 4),
                num_bytes=observer.num_bytes,
                session=observer.session,
            )
        context.set_code(ending.code)
        context.set_details(ending.details)
        context.set_trailing_metadata(ending.trailing)

    def _admit(self, method: str, context: Any) -> str:
        """The name under which the peer is here; AuthError, UnavailableError or PeerError when it may not call."""
        peer = "" if self._allowed is None else require_peer(context, self._allowed)
        if method not in _METHODS:
            raise PeerError(
                "the tap does not forward this method, since it could not record it",
                remedy=f"use {wire.SERVICE} and grpc.health.v1.Health",
            )
        if self._draining:
            raise _draining()
        return peer

    async def _refuse(self, method: str, error: PeerError, context: Any) -> Ending:
        if isinstance(error, UnavailableError) and method in {_HEALTH_CHECK, _HEALTH_WATCH}:
            await context.write(_NOT_SERVING)
            return Ending(grpc.StatusCode.OK)
        trailing = ((wire.ERROR_KEY, type(error).__name__), (wire.REMEDY_KEY, error.remedy))
        return Ending(_refusal_code(error), str(error), trailing)

    async def _forward(self, method: str, requests: Any, context: Any, observer: CallObserver) -> Ending:
        call = self._upstream.call(
            method, timeout_seconds=context.time_remaining(), metadata=_passed_on(context.invocation_metadata())
        )
        self._running.add(call)
        self._idle.clear()
        rewriter = self._rewriter() if method == wire.EXCHANGE else PassThrough()
        pump = asyncio.create_task(_pump_requests(requests, call, observer, rewriter))
        try:
            return await _pump_responses(call, context, observer, rewriter)
        except asyncio.CancelledError:
            if self._draining and not _task_is_cancelled():
                raise _draining() from None
            raise
        finally:
            pump.cancel()
            call.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            await observer.close()
            self._running.discard(call)
            if not self._running:
                self._idle.set()


async def _pump_requests(requests: Any, call: Any, observer: CallObserver, rewriter: Rewriter) -> None:
    """Trusted node to untrusted node, until the former half-closes or the call is over."""
    async for message in requests:
        rewriter.request(message)
        try:
            await _pass_on(message, call.write, observer.request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended; its status is read with the responses
    await call.done_writing()


async def _pump_responses(call: Any, context: Any, observer: CallObserver, rewriter: Rewriter) -> Ending:
    """Untrusted node to trusted node, until the former ends the call; how it ended."""
    try:
        initial = _passed_on(await call.initial_metadata())
        if initial:
            await context.send_initial_metadata(initial)
        async for message in call:
            for changed in rewriter.response(message):
                await _pass_on(changed, context.write, observer.response)
        for held in rewriter.rest():
            await _pass_on(held, context.write, observer.response)
    except grpc.aio.AioRpcError as error:
        return ending_of(error)
    return Ending(grpc.StatusCode.OK, await call.details() or "", _passed_on(await call.trailing_metadata()))


def ending_of(error: grpc.aio.AioRpcError) -> Ending:
    """How a call ended: as the untrusted node said, or UNAVAILABLE where grpc lost the connection while it wrote."""
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == _LOST_HERE:
        return Ending(grpc.StatusCode.UNAVAILABLE, "the connection to the untrusted node broke")
    return Ending(error.code(), error.details() or "", _passed_on(error.trailing_metadata()))


async def _pass_on(
    message: bytes, write: Callable[[bytes], Awaitable[None]], record: Callable[[Seen], Awaitable[None]]
) -> None:
    sent_ns = time.time_ns()
    try:
        await write(message)
    finally:
        await record(Seen(message, sent_ns, time.time_ns()))


def _passed_on(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata without what each connection says for itself."""
    return tuple(
        (key, value)
        for key, value in (metadata or ())
        if key != "user-agent" and (not key.startswith("grpc-") or key == "grpc-status-details-bin")
    )


def _refusal_code(error: PeerError) -> grpc.StatusCode:
    if isinstance(error, AuthError):
        return grpc.StatusCode.PERMISSION_DENIED if error.authenticated else grpc.StatusCode.UNAUTHENTICATED
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, UnavailableError) else grpc.StatusCode.UNIMPLEMENTED


def _draining() -> UnavailableError:
    return UnavailableError("the tap is draining", remedy="connect again once it has restarted")


def _label(method: str) -> str:
    """A method name for metrics and logs; anything a peer made up is one value."""
    return method if method in _METHODS else "other"


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
