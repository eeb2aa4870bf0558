"""Sessions over real servers: what a peer gets, whose a session is, and when it is freed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from splitwire import wire
from splitwire.v1 import channels_pb2, stack_pb2
from ucn.settings import LimitSettings

TRAIN = stack_pb2.COMPUTE_MODE_TRAIN


def test_a_gram_session_trains_and_its_loss_falls(start_server: Any, connect: Any, kit: Any) -> None:
    """OpenSession, FORWARD, BACKWARD, OptimizerStep and CloseSession work together with a real stack."""
    client = connect(start_server())
    granted = client.open(kit.gram_request())
    assert (granted.protocol_version, granted.num_trainable_parameters > 0, len(granted.session_id)) == (1, True, 32)
    stream = client.stream(granted.session_id)
    rows, step, losses = kit.rows(1, 6), 0, []
    for _ in range(5):
        step += 1
        returned = stream.forward(step, rows, compute_mode=TRAIN)
        losses.append(float((returned - 1).pow(2).sum()))
        assert stream.backward(step, 2 * (returned - 1)).shape == rows.shape
        step += 1
        update = stack_pb2.OptimizerStep(learning_rate=0.05, gradient_scale=1.0)
        assert stream.control(step, optimizer_step=update).squared_gradient_norm > 0
        step += 1
        stream.control(step, zero_grad=stack_pb2.ZeroGrad())
    stream.finish()
    client.close_session(granted.session_id)
    assert losses[-1] < losses[0]


def test_a_transformer_session_decodes_with_its_cache(
    start_server: Any, connect: Any, kit: Any, tiny_settings: dict[str, Any]
) -> None:
    """Rows sent one by one into a cache come back as they do when they are sent at once."""
    from splitwire.backbone import identity  # noqa: PLC0415 - brings transformers in

    client = connect(start_server(**tiny_settings))
    model = identity(tiny_settings["model"])
    granted = client.open(kit.request(model=model, mode=stack_pb2.SESSION_MODE_INFERENCE, trainable_scope=0))
    assert granted.model == model
    stream = client.stream(granted.session_id)
    rows = torch.randn(2, 5, model.hidden_width, generator=torch.Generator().manual_seed(1))
    whole = stream.forward(1, rows)
    cached = {"compute_mode": stack_pb2.COMPUTE_MODE_CACHED, "cache_id": 1}
    pieces = [stream.forward(2, rows[:, :3], **cached)]
    pieces += [stream.forward(3 + index, rows[:, 3 + index : 4 + index], **cached) for index in range(2)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-4, atol=1e-5)
    stream.control(10, cache_release=stack_pb2.CacheRelease(cache_id=1))


def test_a_session_outlives_a_broken_stream(scripted: Any, kit: Any) -> None:
    """A new stream of the same peer attaches and learns the last step that was applied."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    first = client.stream(session_id)
    first.forward(1, kit.rows())
    first.cancel()
    second = client.stream()
    assert second.attach(session_id) == 1
    torch.testing.assert_close(second.forward(2, kit.rows()), kit.rows() * 2)


def test_a_newer_stream_takes_the_session_over(scripted: Any, kit: Any) -> None:
    """The older stream is told; the newer one works."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    older = client.stream(session_id)
    newer = client.stream(session_id)
    with pytest.raises(kit.refusal, match="another stream attached") as refusal:
        older.receive()
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "StateError")
    assert newer.forward(1, kit.rows()).shape == kit.rows().shape


def test_a_session_without_a_stream_is_freed_after_its_lease(start_server: Any, connect: Any, kit: Any) -> None:
    """A peer that is gone gives its place back, and the session's stack is closed."""
    node = kit.node()
    limits = LimitSettings(max_sessions=1)
    client = connect(start_server(node.build(), lease_seconds=1, limits=limits))
    session_id = client.open(kit.request()).session_id
    client.stream(session_id).cancel()
    assert node.stacks[0].is_closed.wait(kit.wait_seconds)
    with pytest.raises(kit.refusal, match="unknown") as refusal:
        client.stream(session_id)
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "StateError")
    client.open(kit.request())


def test_an_attached_session_outlasts_its_lease(start_server: Any, connect: Any, kit: Any) -> None:
    """The lease runs only while no stream is attached."""
    client = connect(start_server(kit.node().build(), lease_seconds=1))
    stream = client.stream(client.open(kit.request()).session_id)
    time.sleep(1.5)
    assert stream.forward(1, kit.rows()).shape == kit.rows().shape


def test_a_session_belongs_to_the_peer_that_opened_it(scripted: Any, connect: Any, kit: Any) -> None:
    """Another allowed peer can neither attach to it nor close it."""
    _, running, client = scripted
    session_id = client.open(kit.request()).session_id
    other = connect(running, "tap")
    for attempt in (lambda: other.stream(session_id), lambda: other.close_session(session_id)):
        with pytest.raises(kit.refusal) as refusal:
            attempt()
        assert (refusal.value.code, refusal.value.error) == ("PERMISSION_DENIED", "AuthError")
    client.close_session(session_id)


@pytest.mark.parametrize("limit", ["max_sessions", "max_sessions_per_peer"])
def test_sessions_over_the_limit_are_refused(start_server: Any, connect: Any, kit: Any, limit: str) -> None:
    """The refusal names the limit and when to try again; closing one makes room."""
    client = connect(start_server(kit.node().build(), limits=LimitSettings(**{limit: 1})))
    session_id = client.open(kit.request()).session_id
    with pytest.raises(kit.refusal, match=limit) as refusal:
        client.open(kit.request())
    assert (refusal.value.code, refusal.value.error) == ("RESOURCE_EXHAUSTED", "LimitError")
    assert "120 s" in refusal.value.remedy
    client.close_session(session_id)
    client.open(kit.request())


def test_the_limit_for_one_peer_leaves_room_for_another(start_server: Any, connect: Any, kit: Any) -> None:
    """max_sessions_per_peer counts each peer alone."""
    running = start_server(kit.node().build(), limits=LimitSettings(max_sessions_per_peer=1))
    connect(running).open(kit.request())
    connect(running, "tap").open(kit.request())


def test_closing_a_session_ends_its_stream_and_closes_its_stack(scripted: Any, kit: Any) -> None:
    """The stream completes without an error, and the session is unknown afterwards."""
    node, _, client = scripted
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    client.close_session(session_id)
    stream.finish()
    assert node.stacks[0].is_closed.is_set()
    with pytest.raises(kit.refusal, match="unknown"):
        client.close_session(session_id)


def test_an_error_in_one_session_leaves_others_unharmed(scripted: Any, kit: Any) -> None:
    """A stream that ends with an error touches neither its own session's state nor another session."""
    _, _, client = scripted
    ids = [client.open(kit.request()).session_id for _ in range(2)]
    bad, good = (client.stream(session_id) for session_id in ids)
    good.forward(1, kit.rows())
    bad.send(b"\xff\xff")
    with pytest.raises(kit.refusal):
        bad.receive()
    torch.testing.assert_close(good.forward(2, kit.rows()), kit.rows() * 2)
    assert client.stream(ids[0]).forward(1, kit.rows()).shape == kit.rows().shape


def test_closing_goes_on_when_nobody_waits_for_it(start_server: Any, connect: Any, kit: Any) -> None:
    """A CloseSession whose deadline passes while a step runs still frees the session and its cache bytes."""
    started, may_end = threading.Event(), threading.Event()

    def slow(rows: torch.Tensor, call: Any) -> torch.Tensor:
        if call.step == 1:
            started.set()
            assert may_end.wait(kit.wait_seconds)
        return rows

    node = kit.node(lambda: kit.stack(slow))
    client = connect(start_server(node.build(), limits=LimitSettings(max_total_cache_bytes=1000)))
    session_id = client.open(kit.request()).session_id
    cached = {"compute_mode": stack_pb2.COMPUTE_MODE_CACHED, "cache_id": 1}
    client.stream(session_id).send(*kit.frame(channels_pb2.HOP_FORWARD, 1, kit.rows(1, 9), **cached))
    assert started.wait(kit.wait_seconds)
    request = stack_pb2.CloseSessionRequest(session_id=session_id).SerializeToString()
    with pytest.raises(kit.refusal) as refusal:
        client.call(wire.CLOSE_SESSION, request, timeout=0.2)
    assert refusal.value.code == "DEADLINE_EXCEEDED"
    may_end.set()
    assert node.stacks[0].is_closed.wait(kit.wait_seconds)
    client.stream(client.open(kit.request()).session_id).forward(2, kit.rows(1, 10), **cached)


def test_full_copies_are_limited_apart(start_server: Any, connect: Any, kit: Any) -> None:
    """Sessions that train a copy of the layers have their own limit; others are still let in."""
    client = connect(start_server(kit.node().build(), limits=LimitSettings(max_full_training_sessions=1)))
    full = {"trainable_scope": stack_pb2.TRAINABLE_SCOPE_FULL}
    client.open(kit.request(**full))
    with pytest.raises(kit.refusal, match="max_full_training_sessions is 1") as refusal:
        client.open(kit.request(**full))
    assert refusal.value.error == "LimitError"
    client.open(kit.request())


def test_too_many_calls_at_once_are_refused_at_once(start_server: Any, connect: Any, kit: Any) -> None:
    """Calls do not queue: beyond two a session and a few spare ones, the next is told so and the others go on."""
    client = connect(start_server(kit.node().build(), limits=LimitSettings(max_sessions=1)))
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    waiting = [client.stream() for _ in range(20)]
    deadline = time.monotonic() + kit.wait_seconds
    refusals: list[str] = []
    while not refusals and time.monotonic() < deadline:
        try:
            client.call("/grpc.health.v1.Health/Check", b"")
        except kit.refusal as refusal:
            refusals.append(refusal.code)
    assert refusals == ["RESOURCE_EXHAUSTED"]
    assert stream.forward(1, kit.rows()).shape == kit.rows().shape
    for each in waiting:
        each.cancel()
