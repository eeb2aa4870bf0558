"""A client of the gRPC health service: whether a node, or the whole way through a tap to it, serves.

The same rules as everywhere: mutual TLS, or plaintext to a loopback address that is asked for by name.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from splitwire.errors import SettingsError, UnavailableError
from splitwire.tls import TlsFiles, channel_credentials, check_insecure_address, split_address

SERVING = "SERVING"


def check(
    address: str,
    tls: TlsFiles | None,
    *,
    server_name: str = "",
    insecure_loopback: bool = False,
    timeout_seconds: float = 5.0,
) -> None:
    """Returns when host:port answers SERVING; UnavailableError when it does not, SettingsError or PkiError before.

    `server_name` is the name in its certificate, where that is not the host.
    """
    with _channel(address, tls, server_name, insecure_loopback=insecure_loopback) as channel:
        try:
            said = serving_status(channel, timeout_seconds)
        except grpc.RpcError as error:
            raise UnavailableError(
                f"{address} does not answer: {error.code().name}",
                remedy="see that it runs and listens there, and that its certificate and this one are of one authority",
            ) from None
    if said != SERVING:
        raise UnavailableError(f"{address} says {said}", remedy="wait: it is starting or ending")


def serving_status(channel: grpc.Channel, timeout_seconds: float) -> str:
    """The name of the status that the node behind an open channel says, such as SERVING; grpc.RpcError without one."""
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
    names = health_pb2.HealthCheckResponse.ServingStatus
    return str(names.Name(answer.status)) if answer.status in names.values() else "UNKNOWN"


def _channel(address: str, tls: TlsFiles | None, server_name: str, *, insecure_loopback: bool) -> grpc.Channel:
    split_address(address)
    if insecure_loopback == (tls is not None):
        raise SettingsError(
            f"health of {address}: give either --tls DIR or --insecure-loopback",
            remedy="--tls names the folder of an allowed client's certificate",
        )
    if tls is None:
        check_insecure_address(address)
        return grpc.insecure_channel(address)
    options = [("grpc.ssl_target_name_override", server_name)] if server_name else []
    return grpc.secure_channel(address, channel_credentials(tls), options)
