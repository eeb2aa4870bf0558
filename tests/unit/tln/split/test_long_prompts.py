"""A prompt that crosses in parts must give what it gives whole, and only the logits that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.errors import SettingsError

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def left_padded(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones_like(batch)
    mask[0, :7] = 0
    mask[1, :2] = 0
    return batch.masked_fill(mask == 0, 258), mask


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_logits_in_parts_are_those_of_the_whole(
    split: Callable[..., Any], batch: torch.Tensor, family: str, size: int
) -> None:
    """All of them, and the last ones where a tail end is asked for, also over a cut."""
    pair = split(family)
    with torch.no_grad():
        whole = pair.model(batch, use_cache=True).logits
        pair.model.prefill_positions = size
        before = pair.transport.log.count("cached")
        torch.testing.assert_close(pair.model(batch, use_cache=True).logits, whole, **CLOSE)
        assert pair.transport.log.count("cached") - before == -(-batch.shape[1] // size)
        some = pair.model(batch, use_cache=True, logits_to_keep=4).logits
        assert some.shape[1] == 4
        torch.testing.assert_close(some, whole[:, -4:], **CLOSE)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}])
def test_a_padded_batch_in_parts_gives_the_unsplit_answer(
    split: Callable[..., Any], batch: torch.Tensor, family: str, options: dict[str, Any]
) -> None:
    """The first part takes all padding."""
    pair = split(family)
    pair.model.prefill_positions = 3
    tokens, mask = left_padded(batch)
    chosen = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 258, **options}
    expected = pair.whole.generate(tokens, attention_mask=mask, **chosen)
    assert torch.equal(pair.model.generate(tokens, attention_mask=mask, **chosen), expected)
    assert pair.transport.log.count("cached") > 6


def test_no_frame_is_larger_than_the_peer_takes(split: Callable[..., Any], batch: torch.Tensor) -> None:
    """The parts shrink to what fits."""
    pair = split("llama")
    pair.crossing._max_frame_bytes = 3 * 48 * 4 * 5  # five positions of three sequences
    with torch.no_grad():
        pair.model(batch, use_cache=True)
    assert pair.transport.log.count("cached") == 3


def test_a_prompt_beyond_the_model_is_refused_before_a_step_is_taken(split: Callable[..., Any]) -> None:
    """With both numbers; also when the cache is what fills it."""
    pair = split("llama")
    with torch.no_grad():
        with pytest.raises(SettingsError, match="0 cached and 129 new positions exceed the model's 128"):
            pair.model(torch.zeros(1, 129, dtype=torch.long), use_cache=True)
        assert pair.transport.log == []
        cache = pair.model.new_cache()
        pair.model(torch.zeros(1, 128, dtype=torch.long), cache=cache)
        with pytest.raises(SettingsError, match="128 cached and 1 new"):
            pair.model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
