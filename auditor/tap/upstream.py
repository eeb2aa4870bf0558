"""The tap's channel to the untrusted node.

gRPC's own retries are off: a call that failed is passed on as it failed, and the trusted node decides. The certificate
of the tap is short-lived and Python channels do not reload theirs, so a renewed file makes a new channel for the calls
that follow; running calls keep the old one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from auditor.tap.settings import TapSettings
from splitwire import wire
from splitwire.errors import PkiError
from splitwire.logging import get_logger
from splitwire.tls import TlsFiles, channel_credentials

_log = get_logger(__name__)

MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
)
_CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *MESSAGE_OPTIONS,
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", wire.KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", wire.KEEPALIVE_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class Upstream:
    """Opens calls to the untrusted node. Belongs to one event loop."""

    def __init__(self, settings: TapSettings) -> None:
        self._settings = settings
        self._stamp = _stamp(settings.tls)
        self._channel = self._connect()
        self._old: list[grpc.aio.Channel] = []

    def call(self, method: str, *, timeout_seconds: float | None, metadata: grpc.aio.Metadata) -> Any:
        """A new call that takes and gives serialized messages, whatever the method's cardinality."""
        self._renew()
        return self._channel.stream_stream(method)(timeout=timeout_seconds, metadata=metadata)

    async def close(self) -> None:
        """Ends every channel and with it every call."""
        await asyncio.gather(*(channel.close() for channel in (self._channel, *self._old)))

    def _renew(self) -> None:
        stamp = _stamp(self._settings.tls)
        if stamp == self._stamp:
            return
        try:
            fresh = self._connect()
        except PkiError as error:  # half written: the channel that works stays, and the next call looks again
            _log.warning("renewed certificate not usable", error=str(error))
            return
        self._old.append(self._channel)
        self._channel, self._stamp = fresh, stamp

    def _connect(self) -> grpc.aio.Channel:
        tls = self._settings.tls
        if tls is None:
            return grpc.aio.insecure_channel(self._settings.upstream, options=_CHANNEL_OPTIONS)
        options = _CHANNEL_OPTIONS
        if self._settings.upstream_name:
            options = (*options, ("grpc.ssl_target_name_override", self._settings.upstream_name))
        return grpc.aio.secure_channel(self._settings.upstream, channel_credentials(tls), options=options)


def _stamp(tls: TlsFiles | None) -> tuple[int, ...]:
    """Changes when one of the files is replaced."""
    files = (tls.ca, tls.certificate, tls.key) if tls else ()
    return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
