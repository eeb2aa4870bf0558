"""How bytes reach the untrusted node and come back: one session, one stream, bounded retries, and a seam for observers.

Nothing here looks into a tensor. The bytes handed to `exchange` are the bytes that are sent (and sent again after a
broken connection), and the bytes that observers see: protobuf serialisation is not canonical, so nothing is
serialised twice.

Refused: what tln.connection refuses. A peer's error becomes the matching class of splitwire.errors with the
peer's remedy, cut to printable ASCII, because a peer's text is untrusted input.

Invariants: exchanges are serial. After any failure the stream is dropped, and the next exchange attaches a new one
to the same session. Only a lost connection is retried, with the same bytes; the peer de-duplicates by (session,
step, hop).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
import stamina
from google.protobuf.message import DecodeError

from splitwire import wire
from splitwire.bundles import WireRecord, hop_name
from splitwire.bundles.records import Direction
from splitwire.errors import FrameError, PeerError, StateError, UnavailableError
from splitwire.health import serving_status
from splitwire.v1 import channels_pb2, stack_pb2
from tln.connection import ConnectionSettings, check_connection, new_channel
from tln.exchanges import Meter, Reader, Route, WireObserver
from tln.peer_errors import ConnectionLostError, SessionLostError, from_rpc
from tln.stream import ExchangeStream, Watch, Watchdog

T = TypeVar("T")
CONTROL = channels_pb2.HOP_CONTROL
_CLOSE_TIMEOUT_SECONDS = 5.0


@dataclass
class GrpcTransport:
    """A session over gRPC with mutual TLS (or plaintext on loopback, when the settings say so)."""

    settings: ConnectionSettings
    observers: list[WireObserver] = field(default_factory=list)
    meter: Meter | None = None

    def __post_init__(self) -> None:
        check_connection(self.settings)
        self._lock = threading.Lock()
        self._session_id = ""
        self._session_hash = ""
        self._is_lost = False
        self._is_abandoned = False
        self._channel = new_channel(self.settings)
        self._stream: ExchangeStream | None = None
        self._watchdog = Watchdog()

    @property
    def session_hash(self) -> str:
        """The hash by which logs and bundles name the session; "" before `open`."""
        return self._session_hash

    def open(self, request: stack_pb2.OpenSessionRequest) -> stack_pb2.OpenSessionResponse:
        """Asks for the session, again and again until connect_timeout_seconds while the peer is unreachable."""
        if self._session_id and not self._is_lost:
            raise StateError(f"session {self._session_hash} is open", remedy="open a transport a session")
        message, sent_ns = request.SerializeToString(), time.time_ns()
        limit_seconds = self.settings.connect_timeout_seconds
        for attempt in _retries(attempts=None, seconds=limit_seconds):
            with attempt:
                raw = self._unary(wire.OPEN_SESSION, message, "OpenSession", limit_seconds)
        grant = _parse(stack_pb2.OpenSessionResponse, raw)
        self._session_id, self._session_hash = grant.session_id, wire.session_hash(grant.session_id)
        self._is_lost = False
        self._tell(CONTROL, "request", "OpenSessionRequest", message, sent_ns, self._session_hash)
        self._tell(CONTROL, "response", "OpenSessionResponse", raw, time.time_ns(), self._session_hash)
        return grant

    @property
    def is_attached(self) -> bool:
        """Whether the session has a stream that is up, as far as this side has heard."""
        stream = self._stream
        return stream is not None and stream.is_active

    def attach(self) -> None:
        """Opens the session's stream now, and not with the first exchange: a session without one is freed in time."""
        with self._lock, self._watchdog.watch(self.settings.connect_timeout_seconds) as watch:
            try:
                self._attach(watch)
            except grpc.RpcError as error:
                self._drop_stream()
                raise from_rpc(error, "Attach", address=self.settings.address) from None

    def exchange(self, messages: Sequence[bytes], route: Route, new_reader: Callable[[], Reader[T]]) -> T:
        """Sends serialized ExchangeRequests and reads responses until the reader has its result.

        UnavailableError when the peer stays unreachable or does not answer within step_timeout_seconds.
        """
        if not self._session_id:
            raise StateError("no session is open", remedy="call open first")
        with self._lock, self._timed(route):
            try:
                return self._attempt(messages, route, new_reader())
            except ConnectionLostError:
                if self.settings.retry_attempts == 0:
                    raise
            return self._again(messages, route, new_reader)

    def ask_health(self, timeout_seconds: float) -> str:
        """What the peer's health service says on this connection, or the name of the gRPC status that came instead:
        CANCELLED where the connection was closed meanwhile. Any thread may ask, beside an exchange.
        """
        try:
            return serving_status(self._channel, timeout_seconds)
        except grpc.RpcError as error:
            return str(error.code().name)
        except ValueError:  # as gRPC says that the channel is closed
            return str(grpc.StatusCode.CANCELLED.name)

    def abandon(self) -> None:
        """Whoever waits for the peer, now or later, gets UnavailableError at once. Any thread may call it."""
        self._is_abandoned = True
        self._watchdog.expire()

    def close(self) -> None:
        """Frees the session and the connection. Does not raise when the peer is gone: its lease frees the session."""
        with self._lock:
            self._drop_stream()
            if self._session_id:
                request = stack_pb2.CloseSessionRequest(session_id=self._session_id).SerializeToString()
                self._tell(CONTROL, "request", "CloseSessionRequest", request, time.time_ns(), self._session_hash)
                try:
                    raw = self._unary(wire.CLOSE_SESSION, request, "CloseSession", _CLOSE_TIMEOUT_SECONDS)
                    self._tell(CONTROL, "response", "CloseSessionResponse", raw, time.time_ns(), self._session_hash)
                except PeerError:
                    pass  # it is gone, or has forgotten the session already
                finally:
                    self._session_id = ""
            self._watchdog.stop()
            self._channel.close()

    def _again(self, messages: Sequence[bytes], route: Route, new_reader: Callable[[], Reader[T]]) -> T:
        num_tries, began = 1, time.monotonic()
        try:
            for attempt in _retries(attempts=self.settings.retry_attempts, seconds=self.settings.retry_seconds):
                with attempt:
                    num_tries += 1
                    if self.meter is not None:
                        self.meter.count_retry()
                    self._renew_channel()
                    return self._attempt(messages, route, new_reader())
        except ConnectionLostError as error:
            seconds = time.monotonic() - began
            error.message = f"{error.message} ({num_tries} tries in {seconds:.1f} s)"
            raise
        raise AssertionError("the retry loop returns or raises")

    def _attempt(self, messages: Sequence[bytes], route: Route, reader: Reader[T]) -> T:
        if self._is_abandoned:
            raise self._timeout(route)
        with self._watchdog.watch(self.settings.step_timeout_seconds) as watch:
            try:
                stream = self._stream or self._attach(watch)
                watch.on_timeout = stream.cancel
                self._send(stream, messages, route.hop)
                return self._receive(stream, route.reply_hop, reader)
            except grpc.RpcError as error:
                self._drop_stream()
                if watch.timed_out:
                    raise self._timeout(route) from None
                raise from_rpc(error, str(route)) from None
            except BaseException:
                self._drop_stream()
                raise

    @contextmanager
    def _timed(self, route: Route) -> Iterator[None]:
        began = time.monotonic()
        yield
        if self.meter is not None:
            self.meter.time_phase(f"exchange_{hop_name(route.hop).lower()}", time.monotonic() - began)

    def _attach(self, watch: Watch) -> ExchangeStream:
        self._stream = stream = ExchangeStream(self._channel)
        watch.on_timeout = stream.cancel
        attach = stack_pb2.ExchangeRequest(attach=stack_pb2.Attach(session_id=self._session_id))
        self._send(stream, [attach.SerializeToString()], CONTROL)
        try:
            self._receive(stream, CONTROL, _read_attached)
        except grpc.RpcError as error:
            refusal = from_rpc(error, f"attaching to session {self._session_hash}")
            if isinstance(refusal, StateError):
                self._drop_stream()
                self._is_lost = True
                raise SessionLostError(refusal.message, remedy=refusal.remedy) from None
            raise
        return stream

    def _send(self, stream: ExchangeStream, messages: Sequence[bytes], hop: channels_pb2.Hop) -> None:
        for message in messages:
            if self.observers:
                self._tell(hop, "request", "ExchangeRequest", message, time.time_ns(), self._session_hash)
            stream.send(message)

    def _receive(self, stream: ExchangeStream, hop: channels_pb2.Hop, reader: Reader[T]) -> T:
        while True:
            raw = stream.receive()
            if self.observers:
                self._tell(hop, "response", "ExchangeResponse", raw, time.time_ns(), self._session_hash)
            result = reader(_parse(stack_pb2.ExchangeResponse, raw))
            if result is not None:
                return result

    def _unary(self, path: str, message: bytes, name: str, timeout_seconds: float) -> bytes:
        try:
            return bytes(self._channel.unary_unary(path)(message, timeout=timeout_seconds))
        except grpc.RpcError as error:
            raise from_rpc(error, name, address=self.settings.address) from None

    def _tell(
        self, hop: channels_pb2.Hop, direction: Direction, kind: str, message: bytes, time_ns: int, session: str
    ) -> None:
        record = WireRecord(hop, direction, session, message, time_ns, time_ns, kind)
        for observer in self.observers:
            observer(record)

    def _timeout(self, route: Route) -> UnavailableError:
        if self._is_abandoned:
            return UnavailableError(f"{route} was given up before its answer came", remedy="this program is stopping")
        return UnavailableError(
            f"{route} of session {self._session_hash} had no answer "
            f"within {self.settings.step_timeout_seconds} seconds",
            remedy="look at the untrusted node, or raise connection.step_timeout_seconds",
        )

    def _renew_channel(self) -> None:
        # Python gRPC clients cannot reload certificates in place, so a new channel also picks up renewed ones.
        self._channel.close()
        self._channel = new_channel(self.settings)

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


def _retries(*, attempts: int | None, seconds: float) -> Iterable[stamina.Attempt]:
    return stamina.retry_context(
        on=ConnectionLostError, attempts=attempts, timeout=seconds, wait_initial=0.1, wait_max=2.0, wait_jitter=0.2
    )


M = TypeVar("M", stack_pb2.ExchangeResponse, stack_pb2.OpenSessionResponse)


def _parse(kind: type[M], raw: bytes) -> M:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise FrameError(
            f"the peer's {kind.__name__} of {len(raw)} bytes does not parse", remedy="check what runs at the address"
        ) from None


def _read_attached(response: stack_pb2.ExchangeResponse) -> stack_pb2.Attached:
    if response.WhichOneof("payload") != "attached":
        raise FrameError("the peer did not answer Attach with Attached", remedy="check what runs at the address")
    return response.attached
