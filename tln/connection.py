"""The section [connection] of tln.toml, and the gRPC channel that it describes.

Refused: plaintext anywhere but on loopback; numbers out of range.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from splitwire import wire
from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles, channel_credentials, check_insecure_address, split_address

DEFAULT_WINDOW = 256
_MAX_WINDOW = 1 << 16


@dataclass(frozen=True)
class RecoverySettings:
    """How a session for generation goes on after the untrusted node has lost it."""

    attempts: int = 3
    """New sessions that one step may open after the untrusted node lost the old one; 0 for none."""
    history_bytes: int = 256 << 20
    """Most bytes of sent rows that are kept for it, of all caches of a session."""

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise SettingsError(f"connection.recovery.attempts is {self.attempts}", remedy="give 0 (off) or more")
        if self.history_bytes < 1:
            raise SettingsError(
                f"connection.recovery.history_bytes is {self.history_bytes}",
                remedy="give at least 1, or set connection.recovery.attempts = 0 to keep nothing",
            )


@dataclass(frozen=True)
class ConnectionSettings:
    """Where the untrusted node is, how it is authenticated, and how long to wait for it."""

    address: str = "127.0.0.1:7431"
    """host:port of the untrusted node, or of the auditor's tap in front of it."""
    server_name: str = ""
    """Name that its certificate must carry when it is not the host of the address."""
    tls: TlsFiles | None = None
    """CA, certificate and key of this node."""
    insecure_loopback: bool = False
    """Plaintext; refused for every address that is not loopback."""
    connect_timeout_seconds: float = 15.0
    """How long opening a session or a stream may take."""
    step_timeout_seconds: float = 120.0
    """How long one step may take, sending included."""
    retry_attempts: int = 20
    """How often one exchange is tried after the connection was lost; 0 for never."""
    retry_seconds: float = 30.0
    """How long these tries may take together."""
    replay_window: int = DEFAULT_WINDOW
    """How many answers are remembered, to refuse one that comes again for other rows; 0 for none."""
    recovery: RecoverySettings = field(default_factory=RecoverySettings)

    def __post_init__(self) -> None:
        for name in ("connect_timeout_seconds", "step_timeout_seconds", "retry_seconds"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"connection.{name} is {getattr(self, name)}", remedy="give a positive number")
        if self.retry_attempts < 0:
            raise SettingsError(f"connection.retry_attempts is {self.retry_attempts}", remedy="give 0 or more")
        if not 0 <= self.replay_window <= _MAX_WINDOW:
            raise SettingsError(
                f"connection.replay_window is {self.replay_window}", remedy=f"use 0 (off) to {_MAX_WINDOW}"
            )


def check_connection(settings: ConnectionSettings) -> None:
    """SettingsError unless the settings name an address and exactly one acceptable way to secure the connection."""
    split_address(settings.address)
    if settings.insecure_loopback:
        if settings.tls is not None:
            raise SettingsError(
                "connection.insecure_loopback and connection.tls are both set", remedy="remove one of them"
            )
        check_insecure_address(settings.address)
    elif settings.tls is None:
        raise SettingsError(
            "connection.tls is not set",
            remedy="give tls.ca, tls.certificate and tls.key (`splitwire pki init` makes them); "
            "insecure_loopback is for an address on this machine",
        )


def new_channel(settings: ConnectionSettings) -> grpc.Channel:
    """A channel of its own, with a connection of its own, which the caller closes."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", wire.KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", wire.KEEPALIVE_TIMEOUT_MS),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Without its own pool a renewed channel would be given the old, backing-off connection of the first one.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if settings.tls is None:
        return grpc.insecure_channel(settings.address, options)
    if settings.server_name:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    return grpc.secure_channel(settings.address, channel_credentials(settings.tls), options)
