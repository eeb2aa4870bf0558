"""The tap's process: opens everything, serves until it is told to stop, and completes the bundle.

SIGTERM or SIGINT drains: health says NOT_SERVING, running calls may end, the recorder writes what is queued, then the
manifest, exit 0. A second signal ends the calls at once and still completes the bundle. A recorder that fails makes the
exit code 5, and by default stops the tap: what is not recorded cannot be audited.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from auditor.perturbation import ACTIVE_RECORDER
from auditor.tap.metrics import TapMetrics
from auditor.tap.proxy import Proxy
from auditor.tap.recording import Recording
from auditor.tap.rewriting import PassThrough, Perturber, Rewriter
from auditor.tap.settings import TapSettings
from auditor.tap.upstream import MESSAGE_OPTIONS, Upstream
from splitwire import wire
from splitwire.bundles import BundleWriter, Recorder
from splitwire.errors import SettingsError
from splitwire.logging import get_logger
from splitwire.metrics import serve as serve_metrics
from splitwire.sealing import load_signing_key
from splitwire.settings import to_tree
from splitwire.tls import server_credentials, split_address

RECORDER_NAME = "tap"

_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", wire.KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", wire.KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", wire.KEEPALIVE_MIN_INTERVAL_MS),
)
_CLOSE_SECONDS = 5.0

_log = get_logger(__name__)


class Tap:
    """A running tap on the current event loop: `Tap.start`, then `stop`, after which the bundle is complete."""

    def __init__(
        self,
        settings: TapSettings,
        metrics: TapMetrics,
        address: str,
        server: Any,
        proxy: Proxy,
        upstream: Upstream,
        recording: Recording,
        stop_metrics: Callable[[], None] | None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.address = address
        self.stopping = asyncio.Event()
        self._server = server
        self._proxy = proxy
        self._upstream = upstream
        self._recording = recording
        self._stop_metrics = stop_metrics

    @classmethod
    async def start(cls, settings: TapSettings) -> Tap:
        """Listens and records. SettingsError when an address is taken, PkiError or BundleError for unusable files.

        The addresses are taken first and the bundle's folder last, so that a start that fails leaves no folder behind.
        """
        settings.check()
        metrics = TapMetrics(settings.tls)
        upstream = Upstream(settings)
        key = load_signing_key(settings.signing_key) if settings.signing_key else None
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        address = _bind(server, settings)
        stop_metrics = serve_metrics(settings.metrics.listen, metrics.registry) if settings.metrics.listen else None
        recorder_name = ACTIVE_RECORDER if settings.perturb.is_active else RECORDER_NAME
        writer = BundleWriter(settings.out, recorder=recorder_name, settings=to_tree(settings), signing_key=key)
        recorder = Recorder(writer, max_queue_bytes=settings.max_queue_bytes, when_full=settings.when_full)
        recording = Recording(recorder, metrics, wait=settings.when_full == "wait")
        allowed = None if settings.insecure_loopback else frozenset(settings.allowed_names)
        proxy = Proxy(upstream, recording, metrics, allowed, lambda: _rewriter(settings, metrics))
        server.add_generic_rpc_handlers([proxy])
        tap = cls(settings, metrics, address, server, proxy, upstream, recording, stop_metrics)
        recording.on_failure = tap._recording_failed
        await server.start()
        if settings.perturb.is_active:
            _log.warning("ACTIVE tap: it changes what the untrusted node returns", how=settings.perturb.describe())
        _log.info("tap listens", address=address, upstream=settings.upstream, out=str(settings.out))
        return tap

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Drains, ends the calls, completes the bundle. RecordingError when the bundle could not be completed."""
        self.stopping.set()
        await self._proxy.drain(self.settings.drain_seconds if drain_seconds is None else drain_seconds)
        await self._server.stop(0)
        await self._proxy.wait_idle(_CLOSE_SECONDS)
        await self._upstream.close()
        if self._stop_metrics is not None:
            await asyncio.to_thread(self._stop_metrics)
        await asyncio.to_thread(self._recording.close)
        _log.info("bundle complete", out=str(self.settings.out), num_dropped=self._recording.num_dropped)

    def cut(self) -> None:
        """Ends the running calls at once, so that a drain in progress returns."""
        self._proxy.cut()

    def _recording_failed(self) -> None:
        if self.settings.when_failed == "stop":
            self.stopping.set()
            self.cut()


def _rewriter(settings: TapSettings, metrics: TapMetrics) -> Rewriter:
    """What changes the responses of one exchange stream."""
    return Perturber(settings.perturb, metrics.perturbed.inc) if settings.perturb.is_active else PassThrough()


def _bind(server: Any, settings: TapSettings) -> str:
    """Takes the listening address; the address with the port that was given."""
    host, _ = split_address(settings.listen)
    try:
        if settings.tls is None:
            port = server.add_insecure_port(settings.listen)
        else:
            port = server.add_secure_port(settings.listen, server_credentials(settings.tls))
    except RuntimeError:
        raise SettingsError(
            f"listen address {settings.listen} cannot be bound", remedy="stop what listens there or choose another port"
        ) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve(settings: TapSettings, *, ready: Callable[[str], None]) -> None:
    """Runs a tap until SIGTERM or SIGINT; calls `ready` with its address once it listens."""
    asyncio.run(_serve(settings, ready))


async def _serve(settings: TapSettings, ready: Callable[[str], None]) -> None:
    tap = await Tap.start(settings)
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if tap.stopping.is_set():
            tap.cut()
        tap.stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    try:
        ready(tap.address)
        await tap.stopping.wait()
    finally:
        await tap.stop()
