"""Real handshakes on loopback: who gets through, which TLS version is agreed, and that renewal needs no restart."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from splitwire.errors import AuthError
from splitwire.pki import init_pki, renew
from splitwire.tls import (
    TlsFiles,
    channel_credentials,
    negotiated_version,
    require_peer,
    server_credentials,
    split_address,
)

METHOD = "/test.Echo/Who"


@dataclass
class Running:
    address: str
    files: dict[str, TlsFiles]
    folder: Path

    def call(self, files: TlsFiles | None, name: str = "") -> str:
        options = (("grpc.ssl_target_name_override", name),) if name else ()
        channel = (
            grpc.secure_channel(self.address, channel_credentials(files), options)
            if files
            else grpc.insecure_channel(self.address)
        )
        with channel:
            return channel.unary_unary(METHOD)(b"", timeout=5).decode()


def who(request: bytes, context: grpc.ServicerContext) -> bytes:
    try:
        return require_peer(context, frozenset({"tln.splitwire", "tap.splitwire"})).encode()
    except AuthError as error:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    files = init_pki(tmp_path / "pki", loopback=True)
    handler = grpc.method_handlers_generic_handler("test.Echo", {"Who": grpc.unary_unary_rpc_method_handler(who)})
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(files["ucn"]))
    server.start()
    yield Running(f"127.0.0.1:{port}", files, tmp_path / "pki")
    server.stop(0).wait()


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def test_trusted_nodes_get_through_under_their_names(running: Running) -> None:
    assert running.call(running.files["tln"]) == "tln.splitwire"
    assert running.call(running.files["tap"], "ucn.splitwire") == "tap.splitwire"


def test_an_untrusted_nodes_certificate_cannot_act_as_a_client(running: Running) -> None:
    assert status_of(lambda: running.call(running.files["ucn"])) is grpc.StatusCode.UNAVAILABLE


def test_a_client_of_another_authority_is_refused(running: Running, tmp_path: Path) -> None:
    other = init_pki(tmp_path / "other")["tln"]
    mixed = TlsFiles(other.ca, other.certificate, other.key)
    assert status_of(lambda: running.call(mixed)) is grpc.StatusCode.UNAVAILABLE


def test_a_client_without_tls_is_refused(running: Running) -> None:
    assert status_of(lambda: running.call(None)) is grpc.StatusCode.UNAVAILABLE


def test_a_client_refuses_a_server_of_another_name(running: Running) -> None:
    assert status_of(lambda: running.call(running.files["tln"], "other.example.org")) is grpc.StatusCode.UNAVAILABLE


def test_a_trusted_nodes_certificate_cannot_act_as_a_server(running: Running) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(running.files["tln"]))
    server.start()
    try:
        impostor = Running(f"127.0.0.1:{port}", running.files, running.folder)
        assert status_of(lambda: impostor.call(running.files["tln"], "tln.splitwire")) is grpc.StatusCode.UNAVAILABLE
    finally:
        server.stop(0).wait()


def test_two_peers_agree_on_tls_1_3(running: Running) -> None:
    assert negotiated_version(running.address, running.files["tln"], "ucn.splitwire") == "TLSv1.3"


def test_a_peer_that_offers_only_tls_1_2_gets_it_with_forward_secrecy(running: Running) -> None:
    """gRPC cannot refuse 1.2; docs/keys.md says so. When this fails because it can, the docs may claim more."""
    context = client_context(running.files["tln"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with handshake(running, context) as secure:
        assert secure.version() == "TLSv1.2"
        assert secure.cipher()[0].startswith("ECDHE-ECDSA-")


def test_a_renewed_certificate_is_served_without_a_restart(running: Running) -> None:
    before = served_serial(running)
    renew(running.folder, "ucn")
    after = served_serial(running)
    assert before != after
    assert after == x509.load_pem_x509_certificate(running.files["ucn"].certificate.read_bytes()).serial_number
    assert running.call(running.files["tln"]) == "tln.splitwire"


def test_a_half_written_renewal_leaves_the_old_certificate_in_use(running: Running) -> None:
    before = served_serial(running)
    running.files["ucn"].certificate.write_text("half")
    assert served_serial(running) == before
    assert running.call(running.files["tln"]) == "tln.splitwire"


def served_serial(running: Running) -> int:
    with handshake(running, client_context(running.files["tln"])) as secure:
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True)).serial_number


def client_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    return context


@contextmanager
def handshake(running: Running, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(split_address(running.address), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="ucn.splitwire") as secure,
    ):
        yield secure
