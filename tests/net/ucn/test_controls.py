"""Control messages, and the bytes that caches may take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from splitwire.v1 import stack_pb2
from ucn.settings import AdmissionSettings, LimitSettings

TRAIN, CACHED = stack_pb2.COMPUTE_MODE_TRAIN, stack_pb2.COMPUTE_MODE_CACHED
MAX_CACHE_BYTES = 1000
"""Of scripted stacks, which take 100 bytes for each position of each sequence."""


def _fill(stream: Any, step: int, cache_id: int, kit: Any, positions: int = 2) -> torch.Tensor:
    return stream.forward(step, kit.rows(1, positions), compute_mode=CACHED, cache_id=cache_id)


def test_controls_reach_the_stack(scripted: Any, kit: Any) -> None:
    """Each control message does its one thing and is answered with its step."""
    node, _, client = scripted
    stream = client.stream(client.open(kit.request()).session_id)
    _fill(stream, 1, 5, kit)
    assert stream.control(2, cache_reorder=stack_pb2.CacheReorder(cache_id=5, indices=[0, 0])).step == 2
    stream.control(3, cache_crop=stack_pb2.CacheCrop(cache_id=5, num_positions=1))
    stream.control(4, cache_release=stack_pb2.CacheRelease(cache_id=5))
    stream.control(5, zero_grad=stack_pb2.ZeroGrad())
    assert stream.control(6, gradient_norm=stack_pb2.GradientNorm()).squared_gradient_norm == 4.0
    expected = ["forward 1", "cache_reorder 5 [0, 0]", "cache_crop 5 1", "cache_release 5", "zero_grad"]
    assert node.stacks[0].calls == expected


def test_an_optimizer_step_waits_for_the_gradients(scripted: Any, kit: Any) -> None:
    """Weights that a kept graph still needs are not changed under it."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    client.stream(session_id).forward(1, kit.rows(), compute_mode=TRAIN)
    update = stack_pb2.OptimizerStep(learning_rate=0.1, gradient_scale=1.0)
    with pytest.raises(kit.refusal, match=r"TRAIN steps \[1\] wait for BACKWARD") as refusal:
        client.stream(session_id).control(2, optimizer_step=update)
    assert refusal.value.error == "StateError"
    stream = client.stream(session_id)
    stream.backward(1, kit.rows())
    stream.control(2, optimizer_step=update)


def test_a_cache_over_the_sessions_limit_is_refused_before_it_is_made(
    start_server: Any, connect: Any, kit: Any
) -> None:
    """Growth and reordering are checked alike; a release makes room; the stack never sees what was refused."""
    node = kit.node()
    client = connect(start_server(node.build(), limits=LimitSettings(max_cache_bytes=MAX_CACHE_BYTES)))
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    _fill(stream, 1, 1, kit, positions=6)
    for attempt in (
        lambda stream: _fill(stream, 2, 2, kit, positions=5),
        lambda stream: stream.control(2, cache_reorder=stack_pb2.CacheReorder(cache_id=1, indices=[0, 0])),
    ):
        with pytest.raises(kit.refusal, match="caches of the session would take") as refusal:
            attempt(client.stream(session_id))
        assert (refusal.value.code, refusal.value.error) == ("RESOURCE_EXHAUSTED", "LimitError")
    assert node.stacks[0].calls == ["forward 1"]
    stream = client.stream(session_id)
    stream.control(2, cache_release=stack_pb2.CacheRelease(cache_id=1))
    node.stacks[0].cache_bytes = 0
    _fill(stream, 3, 2, kit, positions=10)


def test_caches_of_all_sessions_share_the_nodes_limit(start_server: Any, connect: Any, kit: Any) -> None:
    """A session that ends gives its bytes back to the others."""
    limits, admission = LimitSettings(max_total_cache_bytes=MAX_CACHE_BYTES), AdmissionSettings(max_waiting=0)
    client = connect(start_server(kit.node().build(), limits=limits, admission=admission))
    ids = [client.open(kit.request()).session_id for _ in range(2)]
    _fill(client.stream(ids[0]), 1, 1, kit, positions=8)
    with pytest.raises(kit.refusal, match="caches hold"):
        _fill(client.stream(ids[1]), 1, 1, kit, positions=3)
    client.close_session(ids[0])
    _fill(client.stream(ids[1]), 1, 1, kit, positions=3)


def test_a_real_cache_is_limited_and_survives_a_refusal(
    start_server: Any, connect: Any, kit: Any, tiny_settings: dict[str, Any]
) -> None:
    """The transformer's own arithmetic decides; the cache still answers as before after a refused frame."""
    from splitwire.backbone import identity  # noqa: PLC0415 - brings transformers in

    model = identity(tiny_settings["model"])
    client = connect(start_server(**tiny_settings, limits=LimitSettings(max_cache_bytes=30_000)))
    request = kit.request(model=model, mode=stack_pb2.SESSION_MODE_INFERENCE, trainable_scope=0)
    session_id = client.open(request).session_id
    rows = torch.randn(1, 80, model.hidden_width, generator=torch.Generator().manual_seed(2))
    cached = {"compute_mode": CACHED, "cache_id": 1}
    stream = client.stream(session_id)
    whole = stream.forward(1, rows[:, :5])
    stream.forward(2, rows[:, :4], **cached)
    with pytest.raises(kit.refusal, match="caches of the session would take"):
        stream.forward(3, rows[:, 4:], **cached)
    last = client.stream(session_id).forward(3, rows[:, 4:5], **cached)
    torch.testing.assert_close(last, whole[:, 4:], rtol=1e-4, atol=1e-5)


def test_kept_graphs_are_limited(start_server: Any, connect: Any, kit: Any) -> None:
    """Gradient accumulation keeps a bounded number of graphs; a refused step may come again after a BACKWARD."""
    client = connect(start_server(limits=LimitSettings(max_kept_steps=2)))
    session_id = client.open(kit.gram_request()).session_id
    stream = client.stream(session_id)
    for step in (1, 2):
        stream.forward(step, kit.rows(), compute_mode=TRAIN)
    with pytest.raises(kit.refusal) as refusal:
        stream.forward(3, kit.rows(), compute_mode=TRAIN)
    assert (refusal.value.code, refusal.value.error) == ("RESOURCE_EXHAUSTED", "LimitError")
    stream = client.stream(session_id)
    stream.backward(1, kit.rows())
    stream.forward(3, kit.rows(), compute_mode=TRAIN)


def test_rows_of_kept_graphs_are_limited(start_server: Any, connect: Any, kit: Any) -> None:
    """A graph's memory grows with its rows, so their sum over the kept steps has a limit; EVALUATE keeps none."""
    node = kit.node()
    client = connect(start_server(node.build(), limits=LimitSettings(max_kept_rows=10)))
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    stream.forward(1, kit.rows(2, 3), compute_mode=TRAIN)
    with pytest.raises(kit.refusal, match="6 rows and 6 wait for BACKWARD") as refusal:
        stream.forward(2, kit.rows(2, 3), compute_mode=TRAIN)
    assert refusal.value.code == "RESOURCE_EXHAUSTED"
    stream = client.stream(session_id)
    stream.forward(2, kit.rows(4, 5))
    stream.control(3, discard_step=stack_pb2.DiscardStep(train_step=1))
    stream.forward(4, kit.rows(2, 5), compute_mode=TRAIN)
    assert node.stacks[0].calls == ["forward 1", "forward 2", "discard 1", "forward 4"]
