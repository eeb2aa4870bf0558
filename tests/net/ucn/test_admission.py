"""Who may talk to the untrusted node at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2

from splitwire import wire
from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles, negotiated_version

HEALTH_CHECK = "/grpc.health.v1.Health/Check"


def _credentials(ca: bytes, certificate: trustme.LeafCert | None) -> grpc.ChannelCredentials:
    if certificate is None:
        return grpc.ssl_channel_credentials(ca)
    return grpc.ssl_channel_credentials(
        ca, certificate.private_key_pem.bytes(), b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    )


@pytest.fixture
def foreign_server(start_server: Any, kit: Any, tmp_path: Path) -> tuple[Any, trustme.CA]:
    """A server whose authority is a trustme one, which issues client certificates with any name."""
    ca = trustme.CA()
    own = ca.issue_cert("localhost", "127.0.0.1")
    files = TlsFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    ca.cert_pem.write_to_path(str(files.ca))
    own.private_key_pem.write_to_path(str(files.key))
    own.cert_chain_pems[0].write_to_path(str(files.certificate))
    return start_server(kit.node().build(), tls=files), ca


def test_tls_1_3_is_negotiated(start_server: Any, pki: dict[str, TlsFiles], kit: Any) -> None:
    """What the server and a client of this project agree on."""
    running = start_server(kit.node().build())
    assert negotiated_version(running.address, pki["tln"], "localhost") == "TLSv1.3"


def test_a_certificate_of_another_authority_is_refused(foreign_server: Any, connect: Any, kit: Any) -> None:
    """The handshake fails: the server never sees a call."""
    running, ca = foreign_server
    stranger = trustme.CA().issue_cert("tln.splitwire")
    client = connect(running, files=None, credentials=_credentials(ca.cert_pem.bytes(), stranger))
    with pytest.raises(kit.refusal) as refusal:
        client.open(kit.request())
    assert refusal.value.code == "UNAVAILABLE"


def test_a_client_without_certificate_is_refused(foreign_server: Any, connect: Any, kit: Any) -> None:
    """Mutual TLS is not optional."""
    running, ca = foreign_server
    client = connect(running, files=None, credentials=_credentials(ca.cert_pem.bytes(), None))
    with pytest.raises(kit.refusal) as refusal:
        client.open(kit.request())
    assert refusal.value.code == "UNAVAILABLE"


def test_a_plaintext_client_is_refused(foreign_server: Any, connect: Any, kit: Any) -> None:
    """A TLS server answers no plaintext."""
    running, _ = foreign_server
    with pytest.raises(kit.refusal) as refusal:
        connect(running, files=None).open(kit.request())
    assert refusal.value.code == "UNAVAILABLE"


@pytest.mark.parametrize("method", [wire.OPEN_SESSION, wire.CLOSE_SESSION, HEALTH_CHECK])
def test_a_name_that_is_not_on_the_list_is_refused(foreign_server: Any, connect: Any, kit: Any, method: str) -> None:
    """A certificate of the right authority is not enough, for any method."""
    running, ca = foreign_server
    client = connect(
        running, files=None, credentials=_credentials(ca.cert_pem.bytes(), ca.issue_cert("guest.splitwire"))
    )
    with pytest.raises(kit.refusal, match="allow-list") as refusal:
        client.call(method, b"")
    assert (refusal.value.code, refusal.value.error) == ("PERMISSION_DENIED", "AuthError")
    assert "guest" not in refusal.value.details


def test_a_listed_name_may_call(foreign_server: Any, connect: Any, kit: Any) -> None:
    """The same authority, with the trusted node's name."""
    running, ca = foreign_server
    client = connect(running, files=None, credentials=_credentials(ca.cert_pem.bytes(), ca.issue_cert("tln.splitwire")))
    client.open(kit.request())
    answer = health_pb2.HealthCheckResponse.FromString(client.call(HEALTH_CHECK, b""))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_nodes_own_certificate_cannot_call(start_server: Any, connect: Any, kit: Any) -> None:
    """Its extended key usage says server only, so a stolen one opens no session elsewhere."""
    running = start_server(kit.node().build(), allowed_names=("ucn.splitwire",))
    with pytest.raises(kit.refusal) as refusal:
        connect(running, "ucn").open(kit.request())
    assert refusal.value.code == "UNAVAILABLE"


def test_plaintext_is_served_on_loopback_only_and_on_demand(start_server: Any, connect: Any, kit: Any) -> None:
    """insecure_loopback serves a nameless peer on 127.0.0.1 and refuses any other address."""
    running = start_server(kit.node().build(), tls=None, insecure_loopback=True)
    connect(running, files=None).open(kit.request())
    with pytest.raises(SettingsError, match="loopback"):
        start_server(kit.node().build(), tls=None, insecure_loopback=True, listen="0.0.0.0:0")
    with pytest.raises(SettingsError, match="tls is not set"):
        start_server(kit.node().build(), tls=None)


def test_reflection_is_off_unless_asked_for(start_server: Any, connect: Any, kit: Any) -> None:
    """A node does not list its services to whoever connects."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: PLC0415 - this test only

    wish = reflection_pb2.ServerReflectionRequest(list_services="")
    shut = reflection_pb2_grpc.ServerReflectionStub(connect(start_server(kit.node().build())).channel)
    with pytest.raises(grpc.RpcError) as refusal:
        next(shut.ServerReflectionInfo(iter([wish]), timeout=kit.wait_seconds))
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
    opened = reflection_pb2_grpc.ServerReflectionStub(
        connect(start_server(kit.node().build(), reflection=True)).channel
    )
    answer = next(opened.ServerReflectionInfo(iter([wish]), timeout=kit.wait_seconds))
    assert wire.SERVICE in [service.name for service in answer.list_services_response.service]
