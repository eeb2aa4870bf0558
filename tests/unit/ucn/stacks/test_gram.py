"""The gram surrogate: its parameter counts, its formula against a slow reference, its gradients, what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.errors import FrameError, LimitError, StateError
from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2
from ucn.stacks import ForwardCall, StackLimits, open_stack
from ucn.stacks.gram import own_generator

RequestFor = Callable[..., stack_pb2.OpenSessionRequest]


def opened(request: stack_pb2.OpenSessionRequest, **limits: Any) -> Any:
    return open_stack(request, None, "cpu", torch.float32, StackLimits(**limits))


def network(*, radial: bool = True, sign_invariant: bool = False, seed: int = 3) -> GramNetwork:
    settings = stack_pb2.GramSettings(
        width=16, num_experts=8, num_layers=2, radial=radial, sign_invariant=sign_invariant
    )
    return GramNetwork(settings, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("radial", "count"), [(True, 161), (False, 113)])
def test_number_of_parameters(request_for: RequestFor, radial: bool, count: int) -> None:
    request = request_for("gram")
    request.gram.radial = radial
    assert opened(request).num_trainable_parameters == count


def slow_reference(net: GramNetwork, frame: torch.Tensor) -> torch.Tensor:
    """The formula of the module's docstring, row by row, for one frame [R, D]."""
    num_rows = frame.shape[0]
    norms = [float(row.norm()) for row in frame]
    units = [row / row.norm() for row in frame]
    for layer in net.layers:
        new_units, new_norms = [], []
        for i in range(num_rows):
            others = [j for j in range(num_rows) if j != i]
            gram = torch.stack([units[i] @ units[j] for j in others])
            squared = gram**2
            spread = torch.sqrt(((squared - squared.mean()) ** 2).mean() + 1e-6)
            features = torch.stack([squared.mean(), spread, squared.max()])
            route = torch.softmax(layer.router_weight @ features + layer.router_bias, 0)
            moved, grown = units[i].clone(), 0.0
            for e in range(len(route)):
                linear = gram.abs() if layer.sign_invariant else gram
                attention = torch.softmax(layer.log_temperature[e].exp() * squared + layer.linear_weight[e] * linear, 0)
                message = sum(attention[k] * gram[k] * units[j] for k, j in enumerate(others))
                moved = moved + route[e] * layer.message_gain[e] * message
                if layer.radial:
                    response = 1 / (1 + math.exp(-float(layer.radial_scale[e] * norms[i] + layer.radial_bias[e])))
                    grown += float(route[e] * layer.radial_gain[e]) * response
            new_units.append(moved / moved.norm())
            new_norms.append(norms[i] * (1 + grown))
        units, norms = new_units, new_norms
    return torch.stack([net.output_gain * norm * unit for norm, unit in zip(norms, units, strict=True)])


@pytest.mark.parametrize("radial", [True, False])
@pytest.mark.parametrize("sign_invariant", [True, False])
def test_equals_the_slow_reference(radial: bool, sign_invariant: bool) -> None:
    net = network(radial=radial, sign_invariant=sign_invariant)
    frames = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        actual = net(frames)
        expected = torch.stack([slow_reference(net, frame) for frame in frames])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(actual, frames, atol=0.05), "a network that does nothing would pass many tests"


def test_gradients_equal_finite_differences() -> None:
    net = network().double()
    frames = torch.randn(1, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    assert torch.autograd.gradcheck(net, (frames,))


@pytest.mark.parametrize("frame", ["equal", "zero", "two"])
def test_degenerate_frames_keep_everything_finite(request_for: RequestFor, frame: str) -> None:
    """Equal rows, zero rows and two rows: outputs and all gradients stay finite."""
    stack = opened(request_for("gram"))
    data = {"equal": torch.ones(1, 5, 16), "zero": torch.zeros(1, 5, 16), "two": torch.randn(1, 2, 16)}[frame]
    output = stack.forward(data, ForwardCall(1, "train"))
    gradient = stack.backward(1, torch.ones_like(output))
    assert bool(output.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert math.isfinite(stack.squared_gradient_norm())


def test_frames_of_a_batch_do_not_touch_each_other() -> None:
    net = network()
    frames = torch.randn(3, 6, 16)
    with torch.no_grad():
        torch.testing.assert_close(net(frames)[1], net(frames[1:2])[0], rtol=1e-5, atol=1e-6)


def test_it_is_not_causal() -> None:
    """A later row changes an earlier one, which is why generation is refused."""
    net, frames = network(), torch.randn(1, 6, 16)
    changed = frames.clone()
    changed[:, -1] = -frames[:, -1].roll(1, -1)
    with torch.no_grad():
        assert not torch.allclose(net(frames)[:, 0], net(changed)[:, 0], atol=1e-5)


def test_two_sessions_start_differently(request_for: RequestFor) -> None:
    first, second = opened(request_for("gram")).state(), opened(request_for("gram")).state()
    name = "parameter.layers.0.log_temperature"
    assert not torch.equal(first.tensors[name], second.tensors[name])
    assert own_generator().initial_seed() != own_generator().initial_seed()
    assert own_generator(common=True).initial_seed() == own_generator(common=True).initial_seed()


def test_training_lowers_a_loss(request_for: RequestFor) -> None:
    """It can learn the output of another network of its kind."""
    stack, teacher = opened(request_for("gram")), network(seed=8)
    frames = torch.randn(8, 10, 16, generator=torch.Generator().manual_seed(4))
    losses = []
    for step in range(1, 61):
        stack.zero_grad()
        output = stack.forward(frames, ForwardCall(step, "train")).requires_grad_()
        loss = (output - teacher(frames).detach()).square().mean()
        losses.append(float(loss.detach()))
        stack.backward(step, torch.autograd.grad(loss, output)[0])
        stack.optimizer_step(3e-2, 1.0, 0.0)
    assert losses[-1] < 0.5 * losses[0]


def test_a_resumed_session_continues_bit_for_bit(request_for: RequestFor) -> None:
    first, second, frames = opened(request_for("gram")), opened(request_for("gram")), torch.randn(2, 5, 16)
    for step in (1, 2):
        first.forward(frames, ForwardCall(step, "train"))
        first.backward(step, frames)
        first.optimizer_step(1e-2, 1.0, 0.0)
    state = first.state()
    second.load_state(state.tensors, state.facts)
    for stack in (first, second):
        stack.zero_grad()
        stack.forward(frames, ForwardCall(3, "train"))
        stack.backward(3, frames)
        stack.optimizer_step(1e-2, 1.0, 0.0)
    call = ForwardCall(4, "evaluate")
    assert torch.equal(first.forward(frames, call), second.forward(frames, call))


def test_what_a_gram_stack_cannot_do_is_refused(request_for: RequestFor) -> None:
    stack = opened(request_for("gram"), max_pairs=100)
    with pytest.raises(StateError, match="not causal"):
        stack.forward(torch.randn(1, 4, 16), ForwardCall(1, "cached", 1))
    for call in (
        lambda: stack.cache_reorder(1, [0]),
        lambda: stack.cache_crop(1, 0),
        lambda: stack.cache_release(1),
    ):
        with pytest.raises(StateError, match="cache 1"):
            call()
    with pytest.raises(FrameError, match="shape"):
        stack.forward(torch.randn(1, 4, 15), ForwardCall(1, "evaluate"))
    with pytest.raises(FrameError, match="shape"):
        stack.forward(torch.randn(1, 1, 16), ForwardCall(1, "evaluate"))
    with pytest.raises(FrameError, match="row_lengths"):
        stack.forward(torch.randn(1, 4, 16), ForwardCall(1, "evaluate", row_lengths=(2,), padding_side="left"))
    with pytest.raises(LimitError, match="121 pairs"):
        stack.forward(torch.randn(1, 11, 16), ForwardCall(1, "evaluate"))
    assert stack.cache_bytes_for(ForwardCall(1, "evaluate"), (1, 4, 16)) == 0
