"""What the trusted node does when the connection breaks, the peer is late, or the two sides do not agree."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import ModelSettings, identity
from splitwire.bundles import WireRecord, frame_digest
from splitwire.errors import (
    AuthError,
    HandshakeError,
    LimitError,
    PkiError,
    SettingsError,
    SplitwireError,
    StateError,
    UnavailableError,
)
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln.connection import ConnectionSettings
from tln.context import StepContext
from tln.session import open_crossing, session_request
from tln.stack_settings import StackSettings
from tln.transport import GrpcTransport
from ucn.settings import LimitSettings

WAIT_SECONDS = 10


def rows(sequences: int = 2, positions: int = 4, seed: int = 3) -> torch.Tensor:
    return torch.randn(sequences, positions, 48, generator=torch.Generator().manual_seed(seed))


def test_a_broken_connection_is_attached_again_and_changes_nothing(
    start_node: Callable[..., Any], connect: Callable[..., Any], cable: Callable[..., Any], batch: torch.Tensor
) -> None:
    """The connection is cut at many points of a generation; tokens are those of an unbroken one."""
    node = start_node()
    line, address = cable(node)
    split, whole = connect(node, address=address).split_model(), connect(node).whole_model()
    expected = whole.generate(batch, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    for limit in (1, 400, 4000, 9000, 15000):
        line.cut_after_bytes = limit
        assert torch.equal(split.generate(batch, max_new_tokens=12, min_new_tokens=12, do_sample=False), expected), (
            limit
        )
    assert line.num_connections >= 5


def test_a_step_is_resent_with_the_same_bytes_and_applied_once(
    start_node: Callable[..., Any], connect: Callable[..., Any], cable: Callable[..., Any]
) -> None:
    """The optimizer step whose answer was lost is not taken twice, and the resent frame has the digest of the first."""
    node = start_node()
    line, address = cable(node)
    seen: list[WireRecord] = []
    stack = StackSettings(trainable="full")
    broken = connect(node, "training", stack, address=address, observers=(seen.append,)).crossing
    steady = connect(node, "training", stack).crossing
    results = []
    for crossing in (broken, steady):
        for number in range(3):
            context = StepContext(crossing.reserve_step(), mode="train")
            crossing.cross(rows(seed=number), context).square().sum().backward()
            if crossing is broken:
                line.cut_after_bytes = 30
            crossing.optimizer_step(0.01)
            crossing.zero_grad()
        with torch.no_grad():
            results.append(crossing.cross(rows(), StepContext(crossing.reserve_step())))
    assert torch.equal(*results)
    control = [record.message for record in seen if record.hop == channels_pb2.HOP_CONTROL]
    assert len(control) > len(set(control)), "nothing was sent again, so the test cut nothing"
    assert len({frame_digest([message]) for message in control}) == len(set(control))


def test_a_peer_that_stays_away_is_given_up_after_the_bound(
    start_node: Callable[..., Any], connect: Callable[..., Any], cable: Callable[..., Any]
) -> None:
    """UnavailableError within the bound; when the peer is back, the session goes on."""
    node = start_node()
    line, address = cable(node)
    crossing = connect(node, address=address, retry_attempts=3, retry_seconds=2.0).crossing
    crossing.cross(rows(), StepContext(crossing.reserve_step()))
    line.is_out = True
    line.cut()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no untrusted node answers"):
        crossing.cross(rows(), StepContext(crossing.reserve_step()))
    assert time.monotonic() - began < 10
    line.is_out = False
    assert crossing.cross(rows(), StepContext(crossing.reserve_step())).shape == (2, 4, 48)


def test_a_restarted_node_knows_no_training_session_and_the_error_says_so(
    start_node: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """The state is gone; going on silently in a new session would be wrong."""
    node = start_node()
    crossing = connect(node, "training").crossing
    crossing.cross(rows(), StepContext(crossing.reserve_step()))
    node.stop()
    node.start()
    with pytest.raises(SplitwireError, match="session") as refusal:
        crossing.cross(rows(), StepContext(crossing.reserve_step()))
    assert isinstance(refusal.value, StateError | AuthError)
    assert refusal.value.remedy


def test_a_late_answer_ends_the_step_and_names_it(start_node: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """The watchdog ends the exchange; the transport is usable afterwards."""
    node = start_node()
    link = connect(node, step_timeout_seconds=0.6)
    link.crossing.cross(rows(), StepContext(link.crossing.reserve_step()))
    executor = node.server._node.transformer_executor
    busy = asyncio.run_coroutine_threadsafe(executor.run(lambda: time.sleep(2.5)), node.loop)
    step = link.crossing.reserve_step()
    with pytest.raises(UnavailableError, match=rf"FORWARD of step {step} of session .* no answer within 0\.6 seconds"):
        link.crossing.cross(rows(), StepContext(step))
    busy.result(WAIT_SECONDS)
    assert link.crossing.cross(rows(), StepContext(link.crossing.reserve_step())).shape == (2, 4, 48)


def test_an_interrupted_step_leaves_the_transport_usable(
    start_node: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """Ctrl-C while an answer is on its way: the next step attaches anew, and no late answer is taken for its own."""
    interrupts = [KeyboardInterrupt()]

    def interrupt(record: WireRecord) -> None:
        if record.hop == channels_pb2.HOP_RETURN and interrupts:
            raise interrupts.pop()

    node = start_node()
    crossing, steady = connect(node, observers=(interrupt,)).crossing, connect(node).crossing
    with pytest.raises(KeyboardInterrupt):
        crossing.cross(rows(seed=1), StepContext(crossing.reserve_step()))
    answers = [each.cross(rows(seed=2), StepContext(each.reserve_step())) for each in (crossing, steady)]
    assert torch.equal(*answers)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"first_layer": 1}, "first_layer"), ({"last_layer": 5}, "last_layer"), ({"dtype": "bf16"}, "compute_dtype")],
)
def test_sides_that_do_not_agree_are_told_which_field_and_what_to_do(
    start_node: Callable[..., Any], pki: dict[str, TlsFiles], changes: dict[str, Any], match: str
) -> None:
    """Before the first tensor."""
    node = start_node()
    settings = replace(node.settings.model, **changes)
    transport = GrpcTransport(ConnectionSettings(address=node.settings.listen, tls=pki["tln"]))
    request = session_request(StackSettings(), identity(settings), mode="inference", compute_dtype=settings.dtype)
    with pytest.raises(HandshakeError, match=match) as refusal:
        open_crossing(transport, request)
    assert "same" in refusal.value.remedy
    transport.close()


def test_another_model_is_noticed_by_its_fingerprint(
    start_node: Callable[..., Any], pki: dict[str, TlsFiles], tiny_model: Callable[[str], Path]
) -> None:
    """Same family, same shapes, other weights."""
    node = start_node()
    claimed = identity(ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4))
    claimed.fingerprint = "0" * 64
    transport = GrpcTransport(ConnectionSettings(address=node.settings.listen, tls=pki["tln"]))
    with pytest.raises(HandshakeError, match="fingerprint"):
        open_crossing(transport, session_request(StackSettings(), claimed, mode="inference"))
    transport.close()


def test_a_node_of_another_authority_is_refused_quickly(start_node: Callable[..., Any], tmp_path: Path) -> None:
    """The certificate is not ours: that is no reason to keep trying."""
    node = start_node()
    stranger = init_pki(tmp_path / "pki")["tln"]
    transport = GrpcTransport(ConnectionSettings(address=node.settings.listen, tls=stranger))
    request = session_request(StackSettings(), identity(node.settings.model), mode="inference")
    began = time.monotonic()
    with pytest.raises(AuthError, match="TLS") as refusal:
        open_crossing(transport, request)
    assert time.monotonic() - began < 5
    assert "certificate" in refusal.value.remedy
    transport.close()


def test_a_server_certificate_cannot_open_a_session(start_node: Callable[..., Any], pki: dict[str, TlsFiles]) -> None:
    """An untrusted node's certificate is for serving; another one cannot be entered with it."""
    node = start_node()
    transport = GrpcTransport(
        ConnectionSettings(address=node.settings.listen, tls=pki["ucn"], connect_timeout_seconds=3.0)
    )
    request = session_request(StackSettings(), identity(node.settings.model), mode="inference")
    with pytest.raises((AuthError, UnavailableError)):
        open_crossing(transport, request)
    transport.close()


def test_nobody_at_the_address_ends_within_the_connect_timeout(pki: dict[str, TlsFiles]) -> None:
    """With the address in the message."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        transport = GrpcTransport(ConnectionSettings(address=address, tls=pki["tln"], connect_timeout_seconds=1.0))
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=address):
            transport.open(session_request(StackSettings(), identity_of_nothing(), mode="inference"))
        assert time.monotonic() - began < 6
        transport.close()


def identity_of_nothing() -> Any:
    from splitwire.v1 import stack_pb2  # noqa: PLC0415

    return stack_pb2.ModelIdentity(family="llama", first_layer=1, last_layer=2, hidden_width=8, fingerprint="0" * 64)


def test_plaintext_is_for_loopback_and_tls_is_for_everything_else(pki: dict[str, TlsFiles]) -> None:
    """Exactly one way to secure the connection, or none on this machine."""
    for settings, match in (
        (ConnectionSettings(address="192.0.2.1:7431", insecure_loopback=True), "loopback"),
        (ConnectionSettings(), "connection.tls"),
        (ConnectionSettings(tls=pki["tln"], insecure_loopback=True), "both"),
    ):
        with pytest.raises(SettingsError, match=match):
            GrpcTransport(settings)
    with pytest.raises(PkiError):
        GrpcTransport(ConnectionSettings(tls=replace(pki["tln"], key=Path("/nowhere/key.pem"))))


def test_plaintext_on_loopback_works_when_both_sides_say_so(
    start_node: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """For a first look, without certificates."""
    node = start_node(tls=None, insecure_loopback=True)
    crossing = connect(node, tls=None, insecure_loopback=True).crossing
    assert crossing.cross(rows(), StepContext(crossing.reserve_step())).shape == (2, 4, 48)


def test_a_cache_over_the_limit_is_refused_with_the_peers_remedy_and_the_session_lives(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor
) -> None:
    """The error is the peer's class with the peer's remedy; the cache is broken, the model is not."""
    node = start_node()
    model = connect(node, stack=StackSettings(max_cache_positions=14)).split_model()
    with pytest.raises(LimitError, match="by 15 positions") as refusal:
        model.generate(batch, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert refusal.value.remedy
    assert model.generate(batch, max_new_tokens=2, do_sample=False).shape == (3, 14)


def test_graphs_and_caches_that_are_let_go_of_are_freed_on_the_other_side(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor
) -> None:
    """Many losses without backward, many generations: nothing piles up there."""
    node = start_node(limits=LimitSettings(max_cache_bytes=100_000))  # room for one cache of this test
    training = connect(node, "training", StackSettings(trainable="none")).split_model()
    for _ in range(20):  # a node keeps 16 graphs
        assert training(batch, labels=batch).loss.requires_grad
    inference = connect(node, stack=StackSettings(max_cache_positions=16, max_cache_sequences=3)).split_model()
    for _ in range(3):
        inference.generate(batch, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    kept = inference.new_cache()
    with torch.no_grad():
        inference(batch, cache=kept)
        with pytest.raises(LimitError, match="cache"):
            inference(batch, cache=inference.new_cache())
