"""A request that comes again is answered again and applied once; anything else out of order is ABORTED."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from splitwire.v1 import channels_pb2, stack_pb2
from ucn.settings import LimitSettings

FORWARD = channels_pb2.HOP_FORWARD
TRAIN, CACHED = stack_pb2.COMPUTE_MODE_TRAIN, stack_pb2.COMPUTE_MODE_CACHED


def _aborted(kit: Any, attempt: Any, text: str) -> None:
    with pytest.raises(kit.refusal, match=text) as refusal:
        attempt()
    assert (refusal.value.code, refusal.value.error) == ("ABORTED", "ReplayError")


def test_the_same_bytes_get_the_same_answer_and_run_once(scripted: Any, kit: Any) -> None:
    """On the same stream and on a new one, the answer is the same bytes."""
    node, _, client = scripted
    session_id = client.open(kit.request()).session_id
    messages = kit.frame(FORWARD, 1, kit.rows(), compute_mode=CACHED, cache_id=1)
    answers = []
    for _ in range(2):
        stream = client.stream(session_id)
        for _ in range(2):
            stream.send(*messages)
            answers.append(stream.receive_raw())
        stream.cancel()
    assert len(set(answers)) == 1
    assert node.stacks[0].calls == ["forward 1"]


def test_backward_and_controls_are_applied_once(scripted: Any, kit: Any) -> None:
    """Gradients do not add up twice and the optimizer does not step twice."""
    node, _, client = scripted
    stream = client.stream(client.open(kit.request()).session_id)
    stream.forward(1, kit.rows(), compute_mode=TRAIN)
    gradients = [stream.backward(1, kit.rows()) for _ in range(2)]
    torch.testing.assert_close(gradients[0], gradients[1])
    update = stack_pb2.OptimizerStep(learning_rate=0.5, gradient_scale=1.0)
    results = [stream.control(2, optimizer_step=update) for _ in range(2)]
    assert results[0] == results[1]
    assert node.stacks[0].calls == ["forward 1", "backward 1", "optimizer_step [0.5, 1.0, 0.0]"]


def test_the_same_step_with_other_bytes_is_aborted(scripted: Any, kit: Any) -> None:
    """For frames and for control messages."""
    node, _, client = scripted
    session_id = client.open(kit.request()).session_id
    client.stream(session_id).forward(1, kit.rows())
    _aborted(kit, lambda: client.stream(session_id).forward(1, kit.rows() + 1), "FORWARD of step 1 .* other bytes")
    client.stream(session_id).control(2, zero_grad=stack_pb2.ZeroGrad())
    other = stack_pb2.GradientNorm()
    _aborted(kit, lambda: client.stream(session_id).control(2, gradient_norm=other), "CONTROL of step 2")
    assert node.stacks[0].calls == ["forward 1", "zero_grad"]


def test_the_same_tensor_in_other_chunks_counts_as_other_bytes(scripted: Any, kit: Any) -> None:
    """A request is known by the messages as received."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    client.stream(session_id).forward(1, kit.rows())
    _aborted(kit, lambda: client.stream(session_id).forward(1, kit.rows(), chunk_bytes=64), "other bytes")


def test_a_stale_step_is_aborted(scripted: Any, kit: Any) -> None:
    """Steps only go up; gaps are allowed, because a trusted node may drop a step that it numbered."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    client.stream(session_id).forward(5, kit.rows())
    _aborted(kit, lambda: client.stream(session_id).forward(4, kit.rows()), "step 4 came after step 5")
    control = {"zero_grad": stack_pb2.ZeroGrad()}
    _aborted(kit, lambda: client.stream(session_id).control(5, **control), "step 5 came after step 5")
    assert client.stream(session_id).forward(7, kit.rows()).shape == kit.rows().shape


def test_an_answer_that_is_no_longer_kept_is_aborted(start_server: Any, connect: Any, kit: Any) -> None:
    """The last answer is always kept; earlier ones only within the budget."""
    client = connect(start_server(kit.node().build(), limits=LimitSettings(max_reply_bytes=0)))
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    for step in (1, 2, 2):
        stream.forward(step, kit.rows())
    _aborted(kit, lambda: client.stream(session_id).forward(1, kit.rows()), "no longer kept")


def test_a_step_whose_stream_broke_while_it_ran_is_answered_later(start_server: Any, connect: Any, kit: Any) -> None:
    """The computation outlives its stream; the peer comes back, resends, and gets the answer of the one run."""
    started, may_end = threading.Event(), threading.Event()

    def slow(rows: torch.Tensor, _call: Any) -> torch.Tensor:
        started.set()
        assert may_end.wait(kit.wait_seconds)
        return rows * 2

    node = kit.node(lambda: kit.stack(slow))
    client = connect(start_server(node.build()))
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    messages = kit.frame(FORWARD, 1, kit.rows())
    stream.send(*messages)
    assert started.wait(kit.wait_seconds)
    stream.cancel()
    threading.Timer(0.2, may_end.set).start()
    again = client.stream()
    assert again.attach(session_id) == 1, "attaching waits for the step that runs"
    torch.testing.assert_close(again.forward(1, kit.rows()), kit.rows() * 2)
    assert node.stacks[0].calls == ["forward 1"]


def test_a_graph_is_used_once(scripted: Any, kit: Any) -> None:
    """A second, different BACKWARD of a step is aborted, and one of a discarded step has nothing to run on."""
    _, _, client = scripted
    session_id = client.open(kit.request()).session_id
    stream = client.stream(session_id)
    stream.forward(1, kit.rows(), compute_mode=TRAIN)
    stream.backward(1, kit.rows())
    stream.forward(2, kit.rows(), compute_mode=TRAIN)
    stream.control(3, discard_step=stack_pb2.DiscardStep(train_step=2))
    _aborted(kit, lambda: client.stream(session_id).backward(1, kit.rows() + 1), "BACKWARD of step 1")
    with pytest.raises(kit.refusal, match="finds no kept graph"):
        client.stream(session_id).backward(2, kit.rows())
