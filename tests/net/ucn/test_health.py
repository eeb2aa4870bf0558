"""The health service: with a client's certificate on the node's port, without one on a loopback port of its own."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from splitwire import wire
from splitwire.cli import app
from splitwire.errors import PkiError, SettingsError, UnavailableError
from splitwire.health import check
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_an_allowed_client_learns_that_the_node_serves(start_server: Any, kit: Any, pki: dict[str, TlsFiles]) -> None:
    running = start_server(kit.node(kit.stack).build())
    check(running.server.address, pki["tln"])


def test_a_certificate_that_only_pulls_metrics_learns_nothing(
    start_server: Any, kit: Any, pki: dict[str, TlsFiles]
) -> None:
    """The monitor's certificate is of the authority and on no allow-list."""
    running = start_server(kit.node(kit.stack).build())
    with pytest.raises(UnavailableError, match="PERMISSION_DENIED"):
        check(running.server.address, pki["monitor"])


def test_another_authority_learns_nothing(start_server: Any, kit: Any, tmp_path: Path) -> None:
    running = start_server(kit.node(kit.stack).build())
    with pytest.raises(UnavailableError, match="does not answer: UNAVAILABLE"):
        check(running.server.address, init_pki(tmp_path / "other")["tln"], timeout_seconds=5)


def test_the_loopback_port_serves_health_and_nothing_else(start_server: Any, kit: Any) -> None:
    """No method of the contract is there, whoever asks."""
    address = _free_address()
    start_server(kit.node(kit.stack).build(), health_listen=address)
    check(address, None, insecure_loopback=True)
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(wire.OPEN_SESSION)(kit.request().SerializeToString(), timeout=5)
    assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_health_without_tls_is_for_loopback_only(start_server: Any, kit: Any) -> None:
    with pytest.raises(SettingsError, match="not a loopback address"):
        start_server(kit.node(kit.stack).build(), health_listen="0.0.0.0:7430")
    with pytest.raises(SettingsError, match="not a loopback address"):
        check("192.0.2.1:7430", None, insecure_loopback=True)


@pytest.mark.parametrize(("options", "error"), [([], SettingsError), (["--tls", "missing"], PkiError)])
def test_the_command_tells_what_it_needs(options: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        app(["health", "127.0.0.1:1", *options], standalone_mode=False)


def test_the_command_waits_for_a_node_that_is_starting(start_server: Any, kit: Any) -> None:
    """The first answers are refusals; once the node listens the command ends well."""
    address = _free_address()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(app, ["health", address, "--insecure-loopback", "--wait", "20"], standalone_mode=False)
        time.sleep(0.3)
        assert not asked.done()
        start_server(kit.node(kit.stack).build(), health_listen=address)
        asked.result(kit.wait_seconds)


def test_the_command_fails_where_nothing_listens() -> None:
    with pytest.raises(UnavailableError, match="see that it runs"):
        app(["health", _free_address(), "--insecure-loopback"], standalone_mode=False)
