"""A session over real layers computes what they compute, trains what is its own, and refuses what does not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.backbone import MiddleModel
from splitwire.errors import FrameError, HandshakeError, LimitError, StateError
from splitwire.v1 import stack_pb2
from ucn.stacks import ForwardCall, StackLimits, open_stack
from ucn.stacks.transformer import padding_mask, position_ids

MiddleOf = Callable[..., MiddleModel]
RequestFor = Callable[..., stack_pb2.OpenSessionRequest]
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")


def opened(request: stack_pb2.OpenSessionRequest, base: MiddleModel, **limits: Any) -> Any:
    return open_stack(request, base, "cpu", base.dtype, StackLimits(**limits))


@pytest.mark.parametrize("family", FAMILIES)
def test_full_frames_equal_the_layers(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor, family: str
) -> None:
    base = middle_of(family)
    actual = opened(request_for("inference"), base).forward(rows, ForwardCall(1, "evaluate"))
    with torch.no_grad():
        torch.testing.assert_close(actual, base(rows), rtol=0, atol=0)
    assert not torch.allclose(actual, rows, atol=0.1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_sequences_equal_themselves_alone(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor, side: Any
) -> None:
    stack = opened(request_for("inference"), middle_of("gemma3_text"))
    lengths = (12, 5, 9)
    together = stack.forward(rows, ForwardCall(1, "evaluate", row_lengths=lengths, padding_side=side))
    for index, length in enumerate(lengths):
        real = slice(0, length) if side == "right" else slice(12 - length, 12)
        alone = stack.forward(rows[index : index + 1, real], ForwardCall(2, "evaluate"))
        torch.testing.assert_close(together[index, real], alone[0], rtol=1e-4, atol=1e-5)


def test_input_gradient_and_parameter_gradients_equal_autograd(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    stack = opened(request_for("full"), middle_of("llama"))
    reference = middle_of("llama")
    leaf, gradient = rows.clone().requires_grad_(), torch.randn_like(rows)
    reference(leaf).backward(gradient)
    stack.forward(rows, ForwardCall(1, "train"))
    torch.testing.assert_close(stack.backward(1, gradient), leaf.grad)
    expected = sum(float(parameter.grad.square().sum()) for parameter in reference.parameters())
    assert stack.squared_gradient_norm() == pytest.approx(expected, rel=1e-5)


def test_full_training_equals_adamw_on_the_layers(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    """Three accumulated, scaled, clipped and decayed steps give the weights that torch alone gives."""
    request = request_for("full")
    request.optimizer.weight_decay = 0.1
    stack, reference = opened(request, middle_of("llama")), middle_of("llama")
    decayed = [parameter for parameter in reference.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in reference.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}])
    step = 0
    for update in range(3):
        optimizer.zero_grad()
        stack.zero_grad()
        for part in range(2):
            step += 1
            data, gradient = rows * (1 + 0.1 * step), rows.flip(0) * (1 + part)
            reference(data).backward(gradient)
            stack.forward(data, ForwardCall(step, "train"))
            stack.backward(step, gradient)
        for parameter in reference.parameters():
            parameter.grad.mul_(0.5)
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 2.0)
        rate = 1e-2 / (1 + update)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert stack.optimizer_step(rate, 0.5, 2.0) > 16.0, "the clip has to act"
    with torch.no_grad():
        torch.testing.assert_close(
            stack.forward(rows, ForwardCall(99, "evaluate")), reference(rows), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_sessions_share_the_base_and_never_change_it(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor, kind: str
) -> None:
    base = middle_of("llama")
    before = {name: parameter.clone() for name, parameter in base.named_parameters()}
    first, second = opened(request_for(kind), base), opened(request_for(kind), base)
    untouched = second.forward(rows, ForwardCall(1, "evaluate"))
    for step in range(1, 4):
        first.forward(rows, ForwardCall(step, "train"))
        first.backward(step, rows)
        first.optimizer_step(1e-2, 1.0, 0.0)
    assert not torch.allclose(first.forward(rows, ForwardCall(9, "evaluate")), untouched, atol=1e-3)
    torch.testing.assert_close(second.forward(rows, ForwardCall(2, "evaluate")), untouched, rtol=0, atol=0)
    for name, parameter in base.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


def test_adapters_refer_to_the_base_tensors(middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor) -> None:
    """A LoRA session adds its adapters and nothing more to memory, and starts from the base's outputs."""
    base = middle_of("llama")
    stack = opened(request_for("lora"), base)
    own = {parameter.data_ptr() for parameter in stack._model.parameters() if not parameter.requires_grad}
    assert own == {parameter.data_ptr() for parameter in base.parameters()}
    # 3 layers; q_proj 48 -> 48 and v_proj 48 -> 24, each in + out at rank 4
    assert stack.num_trainable_parameters == 3 * 4 * ((48 + 48) + (48 + 24))
    with torch.no_grad():
        torch.testing.assert_close(stack.forward(rows, ForwardCall(1, "evaluate")), base(rows))


def test_lora_works_on_the_transposed_layers_of_gpt2(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    request = request_for("lora")
    request.lora.target_modules[:] = ["c_attn"]
    stack = opened(request, middle_of("gpt2"))
    stack.forward(rows, ForwardCall(1, "train"))
    stack.backward(1, rows)
    assert stack.optimizer_step(1e-2, 1.0, 0.0) > 0.0


def test_scope_none_passes_gradients_and_updates_nothing(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    stack = opened(request_for("none"), middle_of("llama"))
    stack.forward(rows, ForwardCall(1, "train"))
    assert stack.backward(1, rows).abs().sum() > 0
    assert stack.num_trainable_parameters == 0
    with pytest.raises(StateError, match="trains no parameter"):
        stack.optimizer_step(1e-3, 1.0, 0.0)


@pytest.mark.parametrize("kind", ["full", "lora", "none"])
def test_bfloat16_sessions_keep_trainable_parameters_in_float32(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor, kind: str
) -> None:
    base = middle_of("llama", dtype="bf16")
    stack = opened(request_for(kind, compute_dtype=stack_pb2.WIRE_DTYPE_BF16), base)
    output = stack.forward(rows, ForwardCall(1, "train"))
    assert output.dtype == torch.bfloat16
    assert stack.backward(1, rows).dtype == torch.bfloat16
    assert all(tensor.dtype == torch.float32 for tensor in stack.state().tensors.values())
    reference = middle_of("llama")
    with torch.no_grad():
        torch.testing.assert_close(output.float(), reference(rows), rtol=0.1, atol=0.1)


def test_several_steps_wait_for_their_gradient_in_any_order(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    stack, alone = opened(request_for("none"), middle_of("llama")), opened(request_for("none"), middle_of("llama"))
    for step in (1, 2, 3):
        stack.forward(rows * step, ForwardCall(step, "train"))
    for step in (2, 3, 1):
        alone.forward(rows * step, ForwardCall(step, "train"))
        torch.testing.assert_close(stack.backward(step, rows), alone.backward(step, rows), rtol=0, atol=0)


def test_kept_steps_are_bounded_and_used_once(middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor) -> None:
    stack = opened(request_for("none"), middle_of("llama"), max_kept_steps=2)
    stack.forward(rows, ForwardCall(1, "train"))
    stack.forward(rows, ForwardCall(2, "train"))
    with pytest.raises(LimitError, match="2 training steps"):
        stack.forward(rows, ForwardCall(3, "train"))
    stack.discard(1)
    stack.forward(rows, ForwardCall(3, "train"))
    stack.backward(2, rows)
    for call in (lambda: stack.backward(2, rows), lambda: stack.discard(1)):
        with pytest.raises(StateError, match="no kept graph"):
            call()


def test_a_gradient_of_another_shape_is_refused_and_the_step_kept(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    stack = opened(request_for("none"), middle_of("llama"))
    stack.forward(rows, ForwardCall(1, "train"))
    with pytest.raises(FrameError, match="gradient has shape"):
        stack.backward(1, rows[:2])
    assert stack.backward(1, rows).shape == rows.shape


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((-1.0, 1.0, 0.0), "learning_rate"),
        ((float("nan"), 1.0, 0.0), "learning_rate"),
        ((1e300, 1.0, 0.0), "learning_rate"),
        ((1e-3, 0.0, 0.0), "gradient_scale"),
        ((1e-3, 1e300, 0.0), "gradient_scale"),
        ((1e-3, 1.0, -1.0), "max_gradient_norm"),
    ],
)
def test_unusable_step_values_are_refused(
    middle_of: MiddleOf, request_for: RequestFor, values: tuple[float, float, float], field: str
) -> None:
    with pytest.raises(StateError, match=field):
        opened(request_for("lora"), middle_of("llama")).optimizer_step(*values)


@pytest.mark.parametrize("values", [(1e6, 1.0, 0.0), (1e6, 1e30, 0.0), (1e6, 1e30, 1e300), (1e6, 1e-300, 1e-300)])
def test_the_largest_step_values_do_not_break_the_arithmetic(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor, values: tuple[float, float, float]
) -> None:
    """They end in an update or a refusal, never in an error of torch."""
    stack = opened(request_for("lora"), middle_of("llama"))
    stack.forward(rows, ForwardCall(1, "train"))
    stack.backward(1, rows)
    with contextlib.suppress(StateError):
        stack.optimizer_step(*values)


def test_a_step_without_or_with_unusable_gradients_changes_nothing(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    stack = opened(request_for("full"), middle_of("llama"))
    with pytest.raises(StateError, match="no gradient"):
        stack.optimizer_step(1e-3, 1.0, 0.0)
    stack.forward(rows, ForwardCall(1, "train"))
    stack.backward(1, torch.full_like(rows, 1e38))
    before = stack.state().tensors
    with pytest.raises(StateError, match="not finite"):
        stack.optimizer_step(1e-3, 1.0, 0.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in stack.state().tensors.items())


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_resumed_session_continues_bit_for_bit(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor, kind: str
) -> None:
    base = middle_of("llama")
    first, second = opened(request_for(kind), base), opened(request_for(kind), base)

    def train(stack: Any, steps: range) -> None:
        for step in steps:
            stack.zero_grad()
            stack.forward(rows * step, ForwardCall(step, "train"))
            stack.backward(step, rows)
            stack.optimizer_step(1e-2, 1.0, 1.0)

    train(first, range(1, 4))
    state = first.state()
    second.load_state(state.tensors, state.facts)
    train(first, range(4, 7))
    train(second, range(4, 7))
    assert torch.equal(
        first.forward(rows, ForwardCall(9, "evaluate")), second.forward(rows, ForwardCall(9, "evaluate"))
    )


def test_a_checkpoint_of_another_session_is_refused(middle_of: MiddleOf, request_for: RequestFor) -> None:
    base = middle_of("llama")
    stack, other = opened(request_for("lora"), base), request_for("lora")
    other.lora.rank = 2
    state = opened(other, base).state()
    with pytest.raises(HandshakeError, match="lora_rank"):
        stack.load_state(state.tensors, state.facts)
    state = stack.state()
    for broken in (
        {name: tensor for name, tensor in state.tensors.items() if "q_proj" not in name},
        {name: tensor[..., :1] for name, tensor in state.tensors.items()},
        {name: tensor * float("nan") for name, tensor in state.tensors.items()},
        {**state.tensors, "optimizer.unknown.x": torch.zeros(1)},
    ):
        with pytest.raises(HandshakeError, match="checkpoint"):
            stack.load_state(broken, state.facts)


def test_rows_that_do_not_fit_are_refused(middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor) -> None:
    stack = opened(request_for("inference"), middle_of("llama"))
    with pytest.raises(FrameError, match="48"):
        stack.forward(rows[..., :40], ForwardCall(1, "evaluate"))
    with pytest.raises(FrameError, match="shape"):
        stack.forward(rows[0], ForwardCall(1, "evaluate"))
    with pytest.raises(StateError, match="inference session"):
        stack.forward(rows, ForwardCall(1, "train"))
    with pytest.raises(StateError, match="without a KV cache"):
        stack.forward(rows, ForwardCall(1, "cached", cache_id=1))
    with pytest.raises(LimitError, match="129 positions exceed the model's 128"):
        stack.forward(torch.zeros(1, 129, 48), ForwardCall(1, "evaluate"))


@pytest.mark.parametrize("lengths", [(1, 2), (0, 1, 1), (1, 1, 13)])
def test_lengths_that_do_not_fit_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(FrameError, match="row_lengths"):
        padding_mask(lengths, "left", (3, 12))


def test_masks_and_positions_count_real_positions() -> None:
    left = padding_mask((2, 4), "left", (2, 4, 8))
    assert left.tolist() == [[False, False, True, True], [True] * 4]
    assert position_ids(left, 4).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    right = padding_mask((2, 4), "right", (2, 4, 8))
    assert right.tolist() == [[True, True, False, False], [True] * 4]
    grown = torch.cat([right, torch.ones(2, 1, dtype=torch.bool)], dim=1)
    assert position_ids(grown, 1).tolist() == [[2], [4]]
    with pytest.raises(FrameError, match="padding side"):
        padding_mask((1, 1), "", (2, 4))


def test_a_closed_session_frees_its_own_and_leaves_the_base(
    middle_of: MiddleOf, request_for: RequestFor, rows: torch.Tensor
) -> None:
    base = middle_of("llama")
    stack = opened(request_for("full"), base)
    stack.forward(rows, ForwardCall(1, "train"))
    stack.close()
    with pytest.raises(StateError):
        stack.backward(1, rows)
    with pytest.raises(StateError, match="closed"):
        stack.forward(rows, ForwardCall(2, "evaluate"))
    assert opened(request_for("inference"), base).forward(rows, ForwardCall(1, "evaluate")).isfinite().all()
