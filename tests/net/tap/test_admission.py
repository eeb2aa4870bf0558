"""Who may use the tap, and whom the tap takes for the untrusted node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from splitwire import wire
from splitwire.errors import SettingsError
from splitwire.pki import init_pki, renew
from splitwire.tls import TlsFiles, negotiated_version

from .conftest import ATTACH


def _open(channel: grpc.Channel) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(wire.OPEN_SESSION)(b"", timeout=20)
    return caught.value


def test_the_untrusted_node_sees_the_tap_and_not_the_trusted_node(client: Any, upstream: Any) -> None:
    client.unary_unary(wire.OPEN_SESSION)(b"", timeout=10)
    assert b"tap.splitwire" in upstream.script.peer_names
    assert b"tln.splitwire" not in upstream.script.peer_names


def test_a_plaintext_client_is_refused(tap: Any, upstream: Any) -> None:
    with grpc.insecure_channel(tap.address) as channel:
        assert _open(channel).code() == grpc.StatusCode.UNAVAILABLE
    assert upstream.script.received == {}


def test_a_certificate_of_another_authority_is_refused(
    tap: Any, upstream: Any, connect: Callable[..., grpc.Channel], pki: dict[str, TlsFiles], tmp_path: Path
) -> None:
    stranger = replace(init_pki(tmp_path / "other")["tln"], ca=pki["tln"].ca)
    with pytest.raises(Exception, match="not signed by"):
        connect(tap.address, stranger)
    wholly_other = init_pki(tmp_path / "third")["tln"]
    assert _open(connect(tap.address, wholly_other)).code() == grpc.StatusCode.UNAVAILABLE
    assert upstream.script.received == {}


def test_the_untrusted_nodes_certificate_cannot_act_as_a_client(
    tap: Any, upstream: Any, connect: Callable[..., grpc.Channel], pki: dict[str, TlsFiles]
) -> None:
    assert _open(connect(tap.address, pki["ucn"])).code() == grpc.StatusCode.UNAVAILABLE
    assert upstream.script.received == {}


def test_a_name_that_is_not_on_the_list_is_denied(
    tap: Any, upstream: Any, connect: Callable[..., grpc.Channel], pki: dict[str, TlsFiles]
) -> None:
    error = _open(connect(tap.address, pki["tap"]))
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED
    assert ("splitwire-error", "AuthError") in [tuple(item) for item in error.trailing_metadata()]
    assert upstream.script.received == {}


def test_an_upstream_of_another_authority_gets_nothing(
    start_upstream: Any, start_tap: Any, connect: Callable[..., grpc.Channel], tmp_path: Path
) -> None:
    impostor = start_upstream(tls=init_pki(tmp_path / "other", loopback=True)["ucn"])
    tap = start_tap(impostor)
    assert _open(connect(tap.address)).code() == grpc.StatusCode.UNAVAILABLE
    assert impostor.script.received == {}


def test_an_upstream_under_another_name_gets_nothing(
    upstream: Any, start_tap: Any, connect: Callable[..., grpc.Channel]
) -> None:
    tap = start_tap(upstream, upstream_name="elsewhere.splitwire")
    assert _open(connect(tap.address)).code() == grpc.StatusCode.UNAVAILABLE
    assert upstream.script.received == {}
    assert connect(start_tap(upstream, upstream_name="ucn.splitwire").address).unary_unary(wire.OPEN_SESSION)(
        b"", timeout=10
    )


def test_the_tap_speaks_tls_1_3(tap: Any, pki: dict[str, TlsFiles]) -> None:
    assert negotiated_version(tap.address, pki["tln"], "localhost") == "TLSv1.3"


def test_a_renewed_certificate_is_used_for_the_next_call(
    start_upstream: Any, start_tap: Any, connect: Callable[..., grpc.Channel], stream: Any, tmp_path: Path
) -> None:
    files = init_pki(tmp_path / "pki", loopback=True)
    upstream = start_upstream(tls=files["ucn"])
    tap = start_tap(upstream, tls=files["tap"])
    exchange = stream(connect(tap.address, files["tln"]))
    exchange.ask(ATTACH)
    before = tap.tap._upstream._channel
    renew(tmp_path / "pki", "tap")
    assert connect(tap.address, files["tln"]).unary_unary(wire.OPEN_SESSION)(b"", timeout=10)
    assert tap.tap._upstream._channel is not before
    assert exchange.ask(ATTACH) == ATTACH


def test_plaintext_is_refused_outside_loopback(upstream: Any, start_tap: Any) -> None:
    with pytest.raises(SettingsError, match="loopback"):
        start_tap(upstream, tls=None, insecure_loopback=True, listen="0.0.0.0:0")
    with pytest.raises(SettingsError, match="loopback"):
        start_tap(upstream, tls=None, insecure_loopback=True, upstream="192.0.2.1:1")
