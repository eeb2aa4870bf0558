"""A scripted upstream, a raw client and a running tap, all on loopback with mutual TLS."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from auditor.tap import Tap, TapSettings
from splitwire import wire
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles, channel_credentials, server_credentials
from splitwire.v1 import stack_pb2

SESSION = "0123456789abcdef" * 2
START_SECONDS = 20


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """Certificates of one authority: tln, tap and ucn."""
    return init_pki(tmp_path_factory.mktemp("pki") / "pki", loopback=True)


class Script:
    """What the upstream does with the first message of an exchange, by the step of a control message."""

    ECHO, ABORT, HANG, FLOOD = 1, 2, 3, 4


def control(step: int) -> bytes:
    """A serialized control message, which tells the upstream what to do."""
    message = stack_pb2.ExchangeRequest(control=stack_pb2.Control(step=step, zero_grad=stack_pb2.ZeroGrad()))
    return message.SerializeToString()


ATTACH = stack_pb2.ExchangeRequest(attach=stack_pb2.Attach(session_id=SESSION)).SerializeToString()
TRAILING = (
    ("splitwire-error", "ReplayError"),
    ("grpc-status-details-bin", b"\x00\xff"),
    ("twice", "1"),
    ("twice", "2"),
)


@dataclass
class Upstream(grpc.GenericRpcHandler):
    """Stands for the untrusted node: keeps what arrives and answers as scripted."""

    received: dict[str, list[bytes]] = field(default_factory=dict)
    metadata: list[tuple[str, Any]] = field(default_factory=list)
    peer_names: list[bytes] = field(default_factory=list)
    seconds_left: float | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    num_flooded: int = 0

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method.startswith("/grpc.health"):
            return None

        def handle(requests: Any, context: Any) -> Iterator[bytes]:
            self.metadata = [(item.key, item.value) for item in context.invocation_metadata()]
            self.peer_names = list(context.auth_context().get("x509_subject_alternative_name", ()))
            self.seconds_left = context.time_remaining()
            context.add_callback(self.ended.set)
            if method == wire.EXCHANGE:
                yield from self._exchange(requests, context)
            else:
                yield from self._unary(method, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    def _unary(self, method: str, requests: Any, context: Any) -> Iterator[bytes]:
        self.received.setdefault(method, []).extend(requests)
        context.send_initial_metadata((("initial", "kept"),))
        context.set_trailing_metadata((("trailing-bin", b"\x00\x01"),))
        answer = stack_pb2.OpenSessionResponse(session_id=SESSION) if method == wire.OPEN_SESSION else None
        yield answer.SerializeToString() if answer else b""

    def _exchange(self, requests: Any, context: Any) -> Iterator[bytes]:
        for message in requests:
            self.received.setdefault(wire.EXCHANGE, []).append(message)
            if message == control(Script.ABORT):
                context.set_trailing_metadata(TRAILING)
                context.abort(grpc.StatusCode.ABORTED, "step 2 is stale: \u00fcber. Send step 3")
            if message == control(Script.HANG):
                self.ended.wait(START_SECONDS)
                return
            if message == control(Script.FLOOD):
                for _ in range(512):
                    self.num_flooded += 1
                    yield b"\x12\xfe\xff\x3f\x1a\xfa\xff\x3f" + bytes((1 << 20) - 6)
            yield message


@dataclass
class UpstreamServer:
    """A scripted upstream that listens."""

    script: Upstream
    server: Any
    health: Any
    address: str


StartUpstream = Callable[..., UpstreamServer]


@pytest.fixture
def start_upstream(pki: dict[str, TlsFiles]) -> Iterator[StartUpstream]:
    """Starts a scripted upstream with the ucn's certificate, or with `tls`."""
    servers = []

    def start(address: str = "127.0.0.1:0", tls: TlsFiles | None = None) -> UpstreamServer:
        script, checks = Upstream(), health.HealthServicer()
        pool = futures.ThreadPoolExecutor(8)
        server = grpc.server(pool, handlers=[script], options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        checks.set("", health_pb2.HealthCheckResponse.SERVING)
        port = server.add_secure_port(address, server_credentials(tls or pki["ucn"]))
        server.start()
        servers.append((server, pool))
        return UpstreamServer(script, server, checks, f"127.0.0.1:{port}")

    yield start
    for server, pool in servers:
        server.stop(None).wait()
        pool.shutdown()


@pytest.fixture
def upstream(start_upstream: StartUpstream) -> UpstreamServer:
    """One scripted upstream."""
    return start_upstream()


class RunningTap:
    """A tap in a thread with an event loop of its own."""

    def __init__(self, settings: TapSettings) -> None:
        self.settings = settings
        self.failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(START_SECONDS)
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        try:
            self.tap = await Tap.start(self.settings)
            self.address = self.tap.address
            self._loop = asyncio.get_running_loop()
            self._started.set()
            await self.tap.stopping.wait()
            await self.tap.stop()
        except Exception as error:  # noqa: BLE001 - raised again in the test's thread
            self.failure = error
        finally:
            self._started.set()

    def begin_stop(self) -> None:
        """Begins to drain."""
        self._loop.call_soon_threadsafe(self.tap.stopping.set)

    def cut(self) -> None:
        """Ends the running calls."""
        self._loop.call_soon_threadsafe(self.tap.cut)

    def wait(self) -> None:
        """Waits for the end and raises what the tap raised."""
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Drains and completes the bundle."""
        if self._thread.is_alive():
            self.begin_stop()
        self.wait()


StartTap = Callable[..., RunningTap]


@pytest.fixture
def start_tap(pki: dict[str, TlsFiles], tmp_path: Path) -> Iterator[StartTap]:
    """start_tap(upstream, **settings) -> a running tap, stopped at the end of the test."""
    taps: list[RunningTap] = []

    def start(upstream: UpstreamServer, /, **changes: Any) -> RunningTap:
        settings = TapSettings(
            listen="127.0.0.1:0",
            upstream=upstream.address,
            out=tmp_path / f"bundle{len(taps)}",
            tls=pki["tap"],
            drain_seconds=0.3,
        )
        taps.append(RunningTap(replace(settings, **changes)))
        return taps[-1]

    yield start
    for tap in taps:
        if tap.failure is None:
            tap.stop()


@pytest.fixture
def tap(start_tap: StartTap, upstream: UpstreamServer) -> RunningTap:
    """A tap in front of the scripted upstream."""
    return start_tap(upstream)


@pytest.fixture
def connect(pki: dict[str, TlsFiles]) -> Iterator[Callable[..., grpc.Channel]]:
    """connect(address, tls=None) -> a channel with the tln's certificate, or with `tls`."""
    channels = []

    def open_channel(address: str, tls: TlsFiles | None = None) -> grpc.Channel:
        options = [("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES), ("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.secure_channel(address, channel_credentials(tls or pki["tln"]), options=options))
        return channels[-1]

    yield open_channel
    for channel in channels:
        channel.close()


@pytest.fixture
def client(tap: RunningTap, connect: Callable[..., grpc.Channel]) -> grpc.Channel:
    """A channel to the tap."""
    return connect(tap.address)


class Stream:
    """One exchange stream, written and read by hand, that keeps what it sent and received."""

    def __init__(self, channel: grpc.Channel, timeout_seconds: float | None = START_SECONDS) -> None:
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self._outbox: list[bytes] = []
        self._ready = threading.Condition()
        self._closed = False
        self.call = channel.stream_stream(wire.EXCHANGE)(self._messages(), timeout=timeout_seconds)

    def _messages(self) -> Iterator[bytes]:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._outbox or self._closed)
                if not self._outbox:
                    return
                message = self._outbox.pop(0)
            yield message

    def send(self, message: bytes) -> None:
        """Sends one message."""
        with self._ready:
            self.sent.append(message)
            self._outbox.append(message)
            self._ready.notify_all()

    def receive(self) -> bytes:
        """Waits for the next message."""
        message: bytes = next(self.call)
        self.received.append(message)
        return message

    def ask(self, message: bytes) -> bytes:
        """Sends one message and waits for the answer."""
        self.send(message)
        return self.receive()

    def half_close(self) -> None:
        """Says that nothing more will be sent."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()


@pytest.fixture
def stream() -> Iterator[Callable[..., Stream]]:
    """stream(channel, timeout_seconds) -> an exchange stream, ended with the test."""
    streams: list[Stream] = []

    def open_stream(channel: grpc.Channel, timeout_seconds: float | None = START_SECONDS) -> Stream:
        streams.append(Stream(channel, timeout_seconds))
        return streams[-1]

    yield open_stream
    for each in streams:
        each.half_close()
        each.call.cancel()


@pytest.fixture
def free_port() -> int:
    """A loopback port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
