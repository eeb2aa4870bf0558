"""What the split model refuses, what it leaves out of the wire, and how its cache behaves."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from splitwire.errors import SettingsError, StateError, UnavailableError
from tln.context import NO_LABEL, StepContext, row_lengths_of
from tln.model_inputs import check_positions
from tln.stack_settings import StackSettings


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"attention_mask": torch.tensor([[1, 0, 1, 1]])}, "holes"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])[:1]}, "holes or pads both sides"),
        ({"attention_mask": torch.zeros(1, 4)}, "without a real position"),
        ({"attention_mask": torch.ones(1, 1, 4, 4)}, "4 dimensions"),
        ({"position_ids": torch.tensor([[0, 1, 0, 1]])}, "do not count along the row"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"output_attentions": True}, "output_attentions"),
        ({"inputs_embeds": torch.zeros(1, 4, 48)}, "inputs_embeds"),
        ({"cache": DynamicCache()}, "DynamicCache"),
    ],
)
def test_what_cannot_cross_is_refused_before_a_step_is_taken(
    split: Callable[..., Any], options: dict[str, Any], match: str
) -> None:
    """With the reason; nothing is sent."""
    pair = split("llama")
    with pytest.raises(SettingsError, match=match), torch.no_grad():
        pair.model(torch.tensor([[1, 2, 3, 4]]), **options)
    assert pair.transport.log == []


def test_no_input_is_refused(split: Callable[..., Any]) -> None:
    """Token ids are the one input."""
    with pytest.raises(SettingsError, match="input_ids"):
        split("llama").model()


def test_a_static_cache_is_refused(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """It knows of one place only."""
    pair = split("llama")
    with pytest.raises(SettingsError, match="static"):
        pair.model.generate(batch, max_new_tokens=2, cache_implementation="static")


def test_a_cache_that_a_failed_step_left_behind_is_not_used(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """Its parts may hold different positions; a new one works."""
    pair = split("llama")
    cache = pair.model.new_cache()
    exchange, pair.transport.exchange = pair.transport.exchange, fails
    with torch.no_grad():
        with pytest.raises(UnavailableError):
            pair.model(batch, cache=cache)
        pair.transport.exchange = exchange
        with pytest.raises(StateError, match="incomplete"):
            pair.model(batch, cache=cache)
        pair.model(batch, cache=pair.model.new_cache())


def fails(*_: Any) -> Any:
    raise UnavailableError("gone")


def test_padding_is_known_from_the_first_pass_on(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """Later masks must continue it, and may not be left out."""
    pair = split("llama")
    mask = torch.ones_like(batch)
    mask[0, :3] = 0
    cache = pair.model.new_cache()
    with torch.no_grad():
        pair.model(batch, attention_mask=mask, cache=cache)
        for bad in (None, torch.ones(3, 5), torch.cat((mask, torch.zeros(3, 1)), 1)):
            with pytest.raises(SettingsError, match="mask"):
                pair.model(batch[:, :1], attention_mask=bad, cache=cache)
        pair.model(batch[:, :1], attention_mask=torch.cat((mask, torch.ones(3, 1)), 1), cache=cache)


def test_a_cached_position_cannot_be_masked_afterwards(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """The untrusted node took it as real and would go on to attend to it."""
    pair = split("llama")
    cache = pair.model.new_cache()
    mask = torch.ones(3, 13, dtype=torch.int64)
    mask[1, 0] = 0
    with torch.no_grad():
        pair.model(batch, cache=cache)
        with pytest.raises(SettingsError, match="does not continue"):
            pair.model(batch[:, :1], attention_mask=mask, cache=cache)


def test_sequences_of_a_cache_can_be_repeated_and_chosen(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """All three parts follow, and the answer is that of the chosen sequences."""
    pair = split("llama")
    cache = pair.model.new_cache()
    with torch.no_grad():
        pair.model(batch, cache=cache)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([4, 1, 0]))
        ours = pair.model(batch[:, :1], cache=cache).logits[:, -1]
        rows = torch.stack([torch.cat((batch[old], batch[new, :1])) for new, old in enumerate((2, 0, 0))])
        theirs = pair.whole(rows).logits[:, -1]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_order_that_changes_nothing_is_not_sent(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """A beam search that keeps its beams costs no message."""
    pair = split("llama")
    cache = pair.model.new_cache()
    with torch.no_grad():
        pair.model(batch, cache=cache)
    cache.reorder_cache(torch.tensor([0, 1, 2]))
    assert "cache_reorder" not in pair.transport.log
    assert cache.get_seq_length() == 12


def test_a_remote_cache_is_freed_by_release_by_reset_and_by_garbage_collection(
    split: Callable[..., Any], batch: torch.Tensor
) -> None:
    """Once each, and not at all when nothing was sent."""
    pair = split("llama")
    with torch.no_grad():
        unused = pair.model.new_cache()
        unused.release()
        assert pair.transport.log == []
        for end in ("release", "reset", "collect"):
            pair.transport.log.clear()
            cache = pair.model.new_cache()
            pair.model(batch, cache=cache)
            if end != "collect":
                getattr(cache, end)()
            del cache
            gc.collect()
            pair.crossing.flush()
            assert pair.transport.log == ["cached", "cache_release"], end


def test_a_reset_cache_starts_again(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """Under a number of its own."""
    pair = split("llama")
    cache = pair.model.new_cache()
    with torch.no_grad():
        first = pair.model(batch, cache=cache).logits
        number = cache.cache_id
        cache.reset()
        assert cache.cache_id != number
        assert torch.equal(pair.model(batch, cache=cache).logits, first)


def test_sliding_windows_cannot_be_rolled_back(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """Assisted decoding asks first; whoever crops anyway is told."""
    pair = split("gemma3_text")
    cache = pair.model.new_cache()
    assert not cache.is_croppable
    with torch.no_grad():
        pair.model(batch[:, :4], cache=cache)
    with pytest.raises(StateError, match="sliding"):
        cache.crop(-1)


def test_the_truth_is_made_when_somebody_listens(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """Tokens, next tokens, documents and padding; nothing of it is made for nobody."""
    pair = split("llama")
    seen: list[Any] = []
    mask = torch.ones_like(batch)
    mask[1, -2:] = 0
    with torch.no_grad():
        pair.model(batch, attention_mask=mask)
        pair.crossing.forward_listeners.append(lambda context, truth, _messages: seen.append((context, truth)))
        pair.model(batch, attention_mask=mask, documents=torch.tensor([4, 5, 6]))
    ((context, truth),) = seen
    assert context.row_lengths == (12, 10, 12)
    assert torch.equal(truth.token, batch)
    assert torch.equal(truth.label[0], torch.cat((batch[0, 1:], torch.tensor([NO_LABEL]))))
    assert truth.label[1, 9:].tolist() == [NO_LABEL] * 3
    assert truth.real.sum(1).tolist() == [12, 10, 12]
    assert truth.document[:, 0].tolist() == [4, 5, 6]


def test_a_training_session_evaluates_under_no_grad(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """The mode of a frame follows autograd, not a flag."""
    pair = split("llama", "training", StackSettings(trainable="none"))
    with torch.no_grad():
        pair.model(batch)
    pair.model(batch)
    assert pair.transport.log[:2] == ["evaluate", "train"]


def test_positions_may_count_with_or_without_padding() -> None:
    """Both forms that transformers uses; nothing else."""
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    check_positions(torch.arange(4)[None], mask, 0)
    check_positions(torch.tensor([[0, 0, 0, 1], [0, 1, 2, 3]]), mask, 0)
    check_positions(torch.tensor([[1, 1, 0, 1], [0, 1, 2, 3]]), mask, 0)
    check_positions(torch.tensor([[4]]), None, 4)
    with pytest.raises(SettingsError):
        check_positions(torch.tensor([[0, 1, 2, 4]]), None, 0)


def test_row_lengths_need_one_side() -> None:
    """Full rows need no lengths."""
    assert row_lengths_of(None) == ((), "")
    assert row_lengths_of(torch.ones(2, 3)) == ((), "")
    assert row_lengths_of(torch.tensor([[1, 1, 0], [1, 0, 0]])) == ((2, 1), "right")
    assert row_lengths_of(torch.tensor([[0, 1, 1], [1, 1, 1]])) == ((2, 3), "left")
    with pytest.raises(SettingsError, match="both sides"):
        row_lengths_of(torch.tensor([[0, 1, 1], [1, 1, 0]]))


def test_a_context_starts_empty() -> None:
    """No two steps share a stash."""
    first, second = StepContext(1), StepContext(2)
    first.stash["x"] = 1
    assert second.stash == {}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_new_tokens": 6}, r"17 of stack\.max_cache_positions, 16"),
        ({"max_new_tokens": 2, "num_beams": 2}, r"6 of stack\.max_cache_sequences, 4"),
        ({"max_new_tokens": 2, "num_return_sequences": 2, "do_sample": True}, r"6 of stack\.max_cache_sequences, 4"),
    ],
)
def test_a_generation_that_the_session_would_cut_off_does_not_begin(
    split: Callable[..., Any], batch: torch.Tensor, options: dict[str, Any], match: str
) -> None:
    """Nothing crosses; one that just fits is generated."""
    made = split("llama", stack=StackSettings(max_cache_positions=16, max_cache_sequences=4))
    with pytest.raises(SettingsError, match=match):
        made.model.generate(batch, min_new_tokens=options["max_new_tokens"], **options)
    assert made.crossing.last_step == 0
    assert made.model.generate(batch, max_new_tokens=5, min_new_tokens=5, do_sample=False).shape == (3, 17)
