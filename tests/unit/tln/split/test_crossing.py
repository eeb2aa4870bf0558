"""The crossing checks what comes back, keeps the order of steps, and lets a gradient out by the policy alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.errors import FrameError, LimitError, ReplayError, SettingsError, StateError, UnavailableError
from splitwire.v1 import channels_pb2, stack_pb2
from tln.context import StepContext
from tln.stack_settings import StackSettings

TRAINING = ("llama", "training", StackSettings(trainable="full"))


def rows(**options: Any) -> torch.Tensor:
    return torch.randn(2, 4, 48, generator=torch.Generator().manual_seed(3)).requires_grad_(**options)


def context(crossing: Any, mode: str = "train") -> StepContext:
    return StepContext(crossing.reserve_step(), mode=mode)  # type: ignore[arg-type]


def changed(**fields: Any) -> Callable[[stack_pb2.ExchangeResponse], stack_pb2.ExchangeResponse]:
    def mangle(response: stack_pb2.ExchangeResponse) -> stack_pb2.ExchangeResponse:
        for name, value in fields.items():
            if name == "shape":
                response.frame.header.shape[:] = value
            else:
                setattr(response.frame.header, name, value)
        return response

    return mangle


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 99},
        {"hop": channels_pb2.HOP_INPUT_GRADIENT},
        {"dtype": stack_pb2.WIRE_DTYPE_BF16},
        {"shape": [2, 4, 47]},
        {"shape": [4, 2, 48]},
        {"shape": [2, 4 << 20, 48]},
        {"total_bytes": 1 << 40},
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_not_used(
    split: Callable[..., Any], fields: dict[str, Any]
) -> None:
    """Step, hop, dtype, shape and size are the peer's claims; none is believed, none is allocated for."""
    pair = split("llama")
    pair.transport.mangle = changed(**fields)
    with pytest.raises(FrameError), torch.no_grad():
        pair.crossing.cross(rows(), context(pair.crossing, "evaluate"))


def test_rows_that_are_not_finite_are_refused_in_both_directions(split: Callable[..., Any]) -> None:
    """The error names hop and step and no value."""
    pair = split("llama")
    bad = rows().detach().clone()
    bad[0, 1, 2] = float("nan")
    with pytest.raises(FrameError, match="FORWARD rows of step 1"), torch.no_grad():
        pair.crossing.cross(bad, context(pair.crossing, "evaluate"))

    def poison(response: stack_pb2.ExchangeResponse) -> stack_pb2.ExchangeResponse:
        response.frame.data = b"\x00\x00\xc0\x7f" + response.frame.data[4:]
        return response

    pair.transport.mangle = poison
    with pytest.raises(FrameError, match="RETURN rows of step 2"), torch.no_grad():
        pair.crossing.cross(rows(), context(pair.crossing, "evaluate"))


def test_an_old_answer_under_a_new_step_is_refused(split: Callable[..., Any]) -> None:
    """The node sends what it sent before, with the header that is due now; the same rows may be answered the same."""
    pair = split("llama")
    old: list[bytes] = []

    def repeat(response: stack_pb2.ExchangeResponse) -> stack_pb2.ExchangeResponse:
        old.append(response.frame.data)
        response.frame.data = old[0]
        return response

    pair.transport.mangle = repeat
    with torch.no_grad():
        pair.crossing.cross(rows(), context(pair.crossing, "evaluate"))
        pair.crossing.cross(rows(), context(pair.crossing, "evaluate"))
        with pytest.raises(ReplayError, match="answer to FORWARD of step 3 is the one it gave to FORWARD of step 2"):
            pair.crossing.cross(-rows(), context(pair.crossing, "evaluate"))


def test_an_answer_of_another_kind_is_refused(split: Callable[..., Any]) -> None:
    """A control result where a frame was due, and the other way round."""
    pair = split("llama")
    pair.transport.mangle = lambda _: stack_pb2.ExchangeResponse(
        control_result=stack_pb2.ControlResult(step=1, squared_gradient_norm=float("nan"))
    )
    with pytest.raises(FrameError, match="control_result"), torch.no_grad():
        pair.crossing.cross(rows(), context(pair.crossing, "evaluate"))
    with pytest.raises(FrameError, match="control_result"):
        pair.crossing.zero_grad()  # the answer carries step 1
    pair.transport.mangle = lambda _: stack_pb2.ExchangeResponse(
        control_result=stack_pb2.ControlResult(step=3, squared_gradient_norm=float("nan"))
    )
    with pytest.raises(FrameError, match="not a finite number"):
        pair.crossing.squared_gradient_norm()


def test_the_policy_decides_what_gradient_crosses(split: Callable[..., Any]) -> None:
    """What the peer gets is what the policy returned; the input gradient follows from it."""
    pair = split(*TRAINING)
    seen: list[torch.Tensor] = []

    def zero(gradient: torch.Tensor, _: StepContext) -> torch.Tensor:
        seen.append(gradient)
        return torch.zeros_like(gradient)

    pair.crossing.policy = zero
    leaf = rows()
    pair.crossing.cross(leaf, context(pair.crossing)).square().sum().backward()
    assert float(seen[0].abs().sum()) > 0
    assert leaf.grad is not None
    assert not leaf.grad.any()
    assert pair.crossing.squared_gradient_norm() == 0


def test_no_gradient_leaves_without_a_policy_or_with_another_shape(split: Callable[..., Any]) -> None:
    """There is no default policy to fall back to."""
    pair = split(*TRAINING)
    for policy, match in ((None, "no gradient policy"), (lambda gradient, _: gradient[:1], "shape")):
        pair.crossing.policy = policy
        loss = pair.crossing.cross(rows(), context(pair.crossing)).sum()
        with pytest.raises(SettingsError, match=match):
            loss.backward()
    assert "backward" not in pair.transport.log


def test_the_peer_gets_its_gradient_even_when_nothing_before_the_crossing_is_trained(
    split: Callable[..., Any],
) -> None:
    """Rows that need no gradient still bring the untrusted node's parameters theirs."""
    pair = split(*TRAINING)
    pair.crossing.cross(rows().detach(), context(pair.crossing)).square().sum().backward()
    assert pair.crossing.squared_gradient_norm() > 0


def test_a_graph_is_used_once(split: Callable[..., Any]) -> None:
    """The peer keeps it once, so a second backward is refused here, with the step."""
    pair = split(*TRAINING)
    loss = pair.crossing.cross(rows(), context(pair.crossing)).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(StateError, match="step 1 was used before"):
        loss.backward()


def test_a_graph_that_is_let_go_of_is_discarded_before_the_next_step(split: Callable[..., Any]) -> None:
    """Nothing is sent from the finalizer itself."""
    pair = split(*TRAINING)
    loss = pair.crossing.cross(rows(), context(pair.crossing)).sum()
    del loss
    gc.collect()
    assert pair.transport.log == ["train"]
    context(pair.crossing)
    assert pair.transport.log == ["train", "discard_step"]


def test_a_step_without_a_graph_there_has_no_gradient(split: Callable[..., Any]) -> None:
    """Evaluation does not silently cut gradients."""
    pair = split("llama")
    loss = pair.crossing.cross(rows(), context(pair.crossing, "evaluate")).sum()
    with pytest.raises(StateError, match="not sent for training"):
        loss.backward()


def test_steps_are_strictly_increasing_in_the_order_in_which_they_are_sent(split: Callable[..., Any]) -> None:
    """Frames and control messages share the counter, deferred messages included."""
    pair = split(*TRAINING)
    for _ in range(3):
        pair.crossing.cross(rows(), context(pair.crossing)).sum().backward()
        pair.crossing.cross(rows(), context(pair.crossing)).sum()  # let go of
        pair.crossing.optimizer_step(1e-3)
        pair.crossing.zero_grad()
    assert pair.transport.steps == sorted(set(pair.transport.steps))
    assert len(pair.transport.steps) == 15


def test_a_message_that_could_not_be_sent_is_kept_for_the_next_step(split: Callable[..., Any]) -> None:
    """An unreachable peer does not make the trusted node forget what it has to free."""
    pair = split(*TRAINING)
    loss = pair.crossing.cross(rows(), context(pair.crossing)).sum()
    del loss
    gc.collect()
    exchange, pair.transport.exchange = pair.transport.exchange, unreachable
    with pytest.raises(UnavailableError):
        pair.crossing.reserve_step()
    pair.transport.exchange = exchange
    pair.crossing.reserve_step()
    assert pair.transport.log == ["train", "discard_step"]


def unreachable(*_: Any) -> Any:
    raise UnavailableError("gone")


def test_a_frame_over_the_peers_limit_is_refused_before_it_is_sent(split: Callable[..., Any]) -> None:
    """With the sizes and the remedy."""
    pair = split("llama")
    pair.crossing._max_frame_bytes = 1000
    with pytest.raises(LimitError, match="1536 bytes exceeds the peer's limit of 1000"), torch.no_grad():
        pair.crossing.cross(rows(), context(pair.crossing, "evaluate"))
    assert pair.transport.log == []
