"""With defences off the split model computes what the unsplit one does: logits, losses, gradients, tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tln.stack_settings import StackSettings

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def left_mask(batch: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(batch)
    mask[1, :5] = 0
    mask[2, :1] = 0
    return mask


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_loss_equal_the_unsplit_models(split: Callable[..., Any], batch: torch.Tensor, family: str) -> None:
    """Full rows, no cache."""
    pair = split(family)
    with torch.no_grad():
        ours, theirs = pair.model(batch, labels=batch), pair.whole(batch, labels=batch)
    torch.testing.assert_close(ours.logits, theirs.logits, **TOLERANCE)
    torch.testing.assert_close(ours.loss, theirs.loss, **TOLERANCE)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padded_rows_equal_the_unsplit_models(
    split: Callable[..., Any], batch: torch.Tensor, family: str, side: str
) -> None:
    """Only lengths cross, and real positions come out the same."""
    pair = split(family)
    mask = left_mask(batch) if side == "left" else left_mask(batch).flip(1)
    with torch.no_grad():
        ours, theirs = pair.model(batch, attention_mask=mask), pair.whole(batch, attention_mask=mask)
    torch.testing.assert_close(ours.logits[mask == 1], theirs.logits[mask == 1], **TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_head_middle_and_tail_equal_the_unsplit_models(
    split: Callable[..., Any], batch: torch.Tensor, family: str
) -> None:
    """One backward pass through the crossing reaches every parameter on both sides."""
    pair = split(family, "training", StackSettings(trainable="full"))
    pair.model(batch, labels=batch).loss.backward()
    pair.whole(batch, labels=batch).loss.backward()
    theirs = gradients_by_layer(pair.whole, pair)
    ours = gradients_by_layer(pair.model.head.body, pair) | gradients_by_layer(pair.model.tail.body, pair, 4)
    assert len(ours) > 10
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], **TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")
    squared = sum(float(g.square().sum()) for name, g in theirs.items() if name.split(".")[0] in ("2", "3"))
    assert pair.crossing.squared_gradient_norm() == pytest.approx(squared, rel=1e-4)


def gradients_by_layer(model: torch.nn.Module, pair: Any, offset: int = 0) -> dict[str, torch.Tensor]:
    """Gradients of decoder layers under `layer.rest`, and of the embedding and norm under their own names."""
    layers = f"{pair.model.head.family.layers}."
    found = {}
    for name, parameter in model.named_parameters():
        short = name.removeprefix("model.").removeprefix("transformer.")
        if parameter.grad is not None:
            if short.startswith(layers):
                number, rest = short.removeprefix(layers).split(".", 1)
                short = f"{int(number) + offset}.{rest}"
            found[short] = parameter.grad
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_the_unsplit_models(split: Callable[..., Any], batch: torch.Tensor, family: str) -> None:
    """64 tokens after left-padded prompts, past every sliding window, through the three caches."""
    pair = split(family)
    options = {"attention_mask": left_mask(batch), "max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False}
    assert torch.equal(pair.model.generate(batch, **options), pair.whole.generate(batch, **options))
    assert pair.transport.log.count("cached") == 64
    assert pair.transport.log[-1] == "cache_release"


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "do_sample": False},
        {"do_sample": True, "temperature": 0.9, "top_p": 0.95},
        {"do_sample": True, "num_beams": 2, "num_return_sequences": 2},
        {"num_return_sequences": 2, "do_sample": True, "top_k": 20},
    ],
    ids=["beam", "sampling", "beam-sampling", "several"],
)
def test_other_decodings_equal_the_unsplit_models(
    split: Callable[..., Any], batch: torch.Tensor, family: str, options: dict[str, Any]
) -> None:
    """Beam search and sampling with the same seed give the same sequences."""
    pair = split(family)
    results = []
    for model in (pair.model, pair.whole):
        torch.manual_seed(5)
        results.append(model.generate(batch, attention_mask=left_mask(batch), max_new_tokens=20, **options))
    assert torch.equal(*results)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_prompt_lookup_rolls_all_three_caches_back(split: Callable[..., Any], family: str) -> None:
    """Assisted decoding proposes several tokens at once and crops what was not accepted."""
    pair = split(family)
    prompt = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9, 7, 5, 9]])
    options = {"max_new_tokens": 24, "do_sample": False, "prompt_lookup_num_tokens": 4}
    assert torch.equal(pair.model.generate(prompt, **options), pair.whole.generate(prompt, **options))
    assert "cache_crop" in pair.transport.log


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_can_be_filled_piece_by_piece(split: Callable[..., Any], batch: torch.Tensor, family: str) -> None:
    """Several positions after several cached ones give the logits of one pass."""
    pair = split(family)
    cache = pair.model.new_cache()
    with torch.no_grad():
        pieces = [pair.model(piece, cache=cache).logits for piece in (batch[:, :5], batch[:, 5:6], batch[:, 6:])]
        whole = pair.whole(batch).logits
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **TOLERANCE)
