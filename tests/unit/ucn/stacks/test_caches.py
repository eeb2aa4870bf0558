"""KV caches: decoding equals one pass, padding and beams included; sizes are known before; roll-back is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.backbone import MiddleModel
from splitwire.errors import FrameError, LimitError, StateError
from splitwire.v1 import stack_pb2
from ucn.stacks import ForwardCall, open_stack

MiddleOf = Callable[..., MiddleModel]
RequestFor = Callable[..., stack_pb2.OpenSessionRequest]
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
SLIDING = ("mistral", "gemma3_text", "qwen2")


@pytest.fixture
def cached(middle_of: MiddleOf, request_for: RequestFor) -> Callable[[str], Any]:
    """cached(family) -> a stack with caches of up to 8 sequences by 32 positions."""

    def build(family: str) -> Any:
        request = request_for("inference", max_cache_positions=32, max_cache_sequences=8)
        return open_stack(request, middle_of(family), "cpu", torch.float32)

    return build


def decode(stack: Any, rows: torch.Tensor, start: int, *, cache_id: int = 1, step: int = 10) -> torch.Tensor:
    """Sends positions from `start` one by one; their outputs [B, T - start, H]."""
    singles = [rows[:, at : at + 1] for at in range(start, rows.shape[1])]
    return torch.cat(
        [stack.forward(row, ForwardCall(step + i, "cached", cache_id)) for i, row in enumerate(singles)], dim=1
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_equals_one_pass(cached: Callable[[str], Any], rows: torch.Tensor, family: str) -> None:
    stack = cached(family)
    expected = stack.forward(rows, ForwardCall(1, "evaluate"))
    prefill = stack.forward(rows[:, :6], ForwardCall(2, "cached", 1))
    actual = torch.cat([prefill, decode(stack, rows, 6)], dim=1)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "side"),
    [(family, side) for family in FAMILIES for side in ("left", "right") if side == "left" or family not in SLIDING],
)
def test_padded_prefill_then_decoding_equals_each_sequence_alone(
    cached: Callable[[str], Any], rows: torch.Tensor, family: str, side: Any
) -> None:
    """Lengths are given once, with the prefill; single positions then extend every sequence."""
    stack, lengths, start = cached(family), (7, 3, 5), 7
    call = ForwardCall(1, "cached", 1, row_lengths=lengths, padding_side=side)
    prefill = stack.forward(rows[:, :start], call)
    decoded = decode(stack, rows, start)
    for index, length in enumerate(lengths):
        real = slice(0, length) if side == "right" else slice(start - length, start)
        sequence = torch.cat([rows[index : index + 1, real], rows[index : index + 1, start:]], dim=1)
        alone = stack.forward(sequence, ForwardCall(50, "evaluate"))[0]
        torch.testing.assert_close(prefill[index, real], alone[:length], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(decoded[index], alone[length:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", SLIDING)
def test_padding_inside_a_sliding_window_is_refused(
    cached: Callable[[str], Any], rows: torch.Tensor, family: str
) -> None:
    """Padding after real positions would take room in the window, and later rows would be wrong."""
    stack = cached(family)
    with pytest.raises(FrameError, match="pad"):
        stack.forward(rows, ForwardCall(1, "cached", 1, row_lengths=(12, 5, 9), padding_side="right"))
    stack.forward(rows, ForwardCall(2, "cached", 1, row_lengths=(12, 5, 9), padding_side="left"))
    with pytest.raises(FrameError, match="pad"):
        stack.forward(rows[:, :2], ForwardCall(3, "cached", 1, row_lengths=(2, 1, 2), padding_side="left"))


@pytest.mark.parametrize("family", FAMILIES)
def test_reordered_sequences_continue_from_their_origin(
    cached: Callable[[str], Any], rows: torch.Tensor, family: str
) -> None:
    stack, origin = cached(family), [2, 0, 0, 1]
    call = ForwardCall(1, "cached", 1, row_lengths=(9, 4, 6), padding_side="left")
    stack.forward(rows[:, :9], call)
    stack.cache_reorder(1, origin)
    actual = decode(stack, rows[origin], 9)
    stack.forward(rows[:, :9], ForwardCall(2, "cached", 2, row_lengths=(9, 4, 6), padding_side="left"))
    expected = decode(stack, rows, 9, cache_id=2)[origin]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep", [0, 4, 9])
def test_a_cropped_cache_continues_as_if_the_rest_had_not_been_sent(
    cached: Callable[[str], Any], rows: torch.Tensor, keep: int
) -> None:
    stack = cached("llama")
    stack.forward(torch.cat([rows[:, :keep], rows[:, : 9 - keep] * 3], dim=1), ForwardCall(1, "cached", 1))
    stack.cache_crop(1, keep)
    expected = stack.forward(rows, ForwardCall(2, "evaluate"))[:, keep:]
    torch.testing.assert_close(decode(stack, rows, keep), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", SLIDING)
def test_a_cache_past_its_window_cannot_be_cropped(
    cached: Callable[[str], Any], rows: torch.Tensor, family: str
) -> None:
    stack = cached(family)
    stack.forward(rows[:, :7], ForwardCall(1, "cached", 1))
    stack.cache_crop(1, 5)
    stack.forward(rows[:, 5:], ForwardCall(2, "cached", 1))
    with pytest.raises(StateError, match="sliding window of 8"):
        stack.cache_crop(1, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bytes_foretold_are_the_bytes_held(cached: Callable[[str], Any], rows: torch.Tensor, family: str) -> None:
    stack = cached(family)
    calls = [(rows[:, :10], ForwardCall(1, "cached", 1)), (rows[:2, :4], ForwardCall(2, "cached", 2))]
    calls += [(rows[:, at : at + 1], ForwardCall(at, "cached", 1)) for at in (10, 11)]
    for data, call in calls:
        foretold = stack.cache_bytes_for(call, data.shape)
        stack.forward(data, call)
        assert sum(entry.num_bytes for entry in stack._caches._entries.values()) == foretold
    held = stack.cache_bytes_for(ForwardCall(90, "evaluate"), rows.shape)
    stack.cache_release(1)
    assert 0 < stack.cache_bytes_for(ForwardCall(91, "evaluate"), rows.shape) < held


def test_sizes_over_the_agreed_ones_are_refused_before_anything_grows(
    cached: Callable[[str], Any], rows: torch.Tensor
) -> None:
    stack = cached("llama")
    with pytest.raises(LimitError, match="9 sequences"):
        stack.forward(rows.repeat(3, 1, 1), ForwardCall(1, "cached", 1))
    stack.forward(rows.repeat(1, 2, 1), ForwardCall(2, "cached", 1))
    with pytest.raises(LimitError, match="36 positions"):
        stack.forward(rows, ForwardCall(3, "cached", 1))
    with pytest.raises(LimitError, match="9 sequences"):
        stack.cache_reorder(1, [0] * 9)
    stack.forward(rows[:, :8], ForwardCall(4, "cached", 1))


def test_caches_that_do_not_exist_or_fit_are_refused(cached: Callable[[str], Any], rows: torch.Tensor) -> None:
    stack = cached("llama")
    for call in (
        lambda: stack.cache_reorder(5, [0]),
        lambda: stack.cache_crop(5, 1),
        lambda: stack.cache_release(5),
    ):
        with pytest.raises(StateError, match="cache 5 does not exist"):
            call()
    stack.forward(rows, ForwardCall(1, "cached", 5))
    with pytest.raises(FrameError, match="2 sequences, but cache 5 has 3"):
        stack.forward(rows[:2], ForwardCall(2, "cached", 5))
    for indices in ([], [3], [-1]):
        with pytest.raises(FrameError, match="indices from 0 to 2"):
            stack.cache_reorder(5, indices)
    with pytest.raises(FrameError, match="num_positions is 13"):
        stack.cache_crop(5, 13)


def test_a_cache_whose_pass_failed_is_lost_until_released(
    cached: Callable[[str], Any], rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the layers may have taken the positions: continuing would give wrong rows."""
    stack = cached("llama")
    stack.forward(rows[:, :4], ForwardCall(1, "cached", 1))

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(stack._model.body.layers[1], "forward", fail)
        with pytest.raises(RuntimeError):
            stack.forward(rows[:, 4:5], ForwardCall(2, "cached", 1))
    with pytest.raises(StateError, match="lost"):
        stack.forward(rows[:, 4:5], ForwardCall(3, "cached", 1))
    stack.cache_release(1)
    stack.forward(rows, ForwardCall(4, "cached", 1))
