"""The server: what listens, and how it stops.

Stopping (SIGTERM or SIGINT): health says NOT_SERVING and no session is opened; open sessions may go on for
`drain_seconds`; then their streams end with UNAVAILABLE after the answer that is under way, sessions are freed,
metrics stop, and the process ends with 0. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

import splitwire
from splitwire.errors import SettingsError
from splitwire.logging import get_logger
from splitwire.metrics import serve as serve_metrics
from splitwire.tls import TlsFiles, server_credentials
from splitwire.wire import (
    KEEPALIVE_MIN_INTERVAL_MS,
    KEEPALIVE_TIME_MS,
    KEEPALIVE_TIMEOUT_MS,
    MAX_MESSAGE_BYTES,
    SERVICE,
)
from ucn.interceptors import interceptors
from ucn.metrics import UcnMetrics
from ucn.node import Node
from ucn.service import StackServicer
from ucn.sessions import SessionTable
from ucn.settings import UcnSettings, check

_log = get_logger("ucn")
_SPARE_CALLS = 16
_LAST_GRACE_SECONDS = 1.0
"""For last answers to leave; calls without an end of their own, such as health watches, do not hold a shutdown up."""
_FORCED_EXIT = 128 + signal.SIGTERM


class UcnServer:
    """One listening server over one node. Belongs to the event loop that starts it."""

    def __init__(self, settings: UcnSettings, node: Node) -> None:
        check(settings)
        self._settings = settings
        self._node = node
        self._metrics = UcnMetrics(settings.tls)
        self.table = SessionTable(settings.limits, settings.lease_seconds)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._stop_metrics: Callable[[], None] | None = None
        self._servicer: StackServicer | None = None
        self._health_server: grpc.aio.Server | None = None
        self.address = ""
        self._metrics.watch(
            lambda: len(self.table),
            lambda: node.queue_depth,
            lambda: 0 if self._servicer is None else self._servicer.cache_bytes,
            lambda: 0 if self._servicer is None else self._servicer.cache_waiting,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of this server."""
        return self._metrics.registry

    async def start(self) -> None:
        """Binds and serves; afterwards `address` holds the host and the port that was bound."""
        settings = self._settings
        server = grpc.aio.server(
            interceptors=interceptors(self._metrics, self._allowed_names()),
            options=_options(),
            maximum_concurrent_rpcs=2 * settings.limits.max_sessions + _SPARE_CALLS,
        )
        servicer = self._servicer = StackServicer(settings, self._node, self.table, self._metrics)
        server.add_generic_rpc_handlers((servicer.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if settings.reflection:
            reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        port = _bind(server, "listen", settings.listen, settings.tls)
        if settings.metrics.listen:
            self._stop_metrics = serve_metrics(settings.metrics.listen, self.registry, settings.tls)
        await server.start()
        self._server = server
        if settings.health_listen:
            await self._serve_health(settings.health_listen)
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.address = f"{settings.listen.rpartition(':')[0]}:{port}"
        _log.info("serving", address=self.address, metrics=settings.metrics.listen, version=splitwire.__version__)

    async def drain(self) -> None:
        """Stops as the module says; returns when everything is freed."""
        _log.info("draining", num_sessions=len(self.table), drain_seconds=self._settings.drain_seconds)
        await self._health.enter_graceful_shutdown()
        self.table.start_draining()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.table.emptied(), self._settings.drain_seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.table.end_streams(), self._settings.step_grace_seconds)
        await self.stop(_LAST_GRACE_SECONDS)

    async def stop(self, grace_seconds: float) -> None:
        """Ends calls after at most `grace_seconds` and frees everything."""
        for server in (self._server, self._health_server):
            if server is not None:
                await server.stop(grace_seconds)
        await self.table.close_all()
        if self._servicer is not None:
            await asyncio.to_thread(self._servicer.shutdown)
        if self._stop_metrics is not None:
            await asyncio.to_thread(self._stop_metrics)
        await asyncio.to_thread(self._node.shutdown)
        _log.info("stopped")

    async def _serve_health(self, address: str) -> None:
        """The health service alone, for probes of this machine, which hold no certificate of a client."""
        server = grpc.aio.server(options=_options())
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        _bind(server, "health_listen", address, None)
        await server.start()
        self._health_server = server

    def _allowed_names(self) -> frozenset[str] | None:
        return None if self._settings.insecure_loopback else frozenset(self._settings.allowed_names)


async def serve(settings: UcnSettings, node: Node) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    server = UcnServer(settings, node)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    await server.start()
    await stopping.wait()
    await server.drain()


def _bind(server: grpc.aio.Server, setting: str, address: str, tls: TlsFiles | None) -> int:
    """Takes the address that `setting` names and returns its port."""
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, server_credentials(tls))
    except RuntimeError:
        port = 0
    if not port:
        raise SettingsError(
            f"{setting} {address} cannot be bound", remedy="choose a free port on an address of this machine"
        )
    return int(port)


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(_FORCED_EXIT)  # a computation that runs would keep an ordinary exit waiting
    stopping.set()


def _options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MIN_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.so_reuseport", 0),
    ]
