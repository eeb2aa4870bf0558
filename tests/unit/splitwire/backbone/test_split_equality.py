"""Head, middle and tail in a row compute what the uncut model computes: logits, gradients, cached decoding, padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from splitwire.backbone import ModelSettings, load_head, load_head_and_tail, load_middle, load_tail, load_whole

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
POSITIONS = 21  # more than twice the sliding window of the tiny models
CUTS = ((2, 4), (1, 5), (3, 5))

TinyModel = Callable[[str], Path]


def settings_of(folder: Path, first: int = 2, last: int = 4) -> ModelSettings:
    return ModelSettings(source=str(folder), first_layer=first, last_layer=last)


def tokens(batch: int = 3, positions: int = POSITIONS) -> torch.Tensor:
    return torch.randint(0, 256, (batch, positions), generator=torch.Generator().manual_seed(5))


def split_logits(parts: tuple[Any, Any, Any], ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    head, middle, tail = parts
    caches = inputs.pop("caches", (None, None, None))
    hidden = middle(head(ids, cache=caches[0], **inputs), cache=caches[1], **inputs)
    return tail.logits(tail(hidden, cache=caches[2], **inputs))


def parts_of(settings: ModelSettings) -> tuple[Any, Any, Any]:
    head, tail = load_head_and_tail(settings)
    return head, load_middle(settings), tail


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("first", "last"), CUTS)
def test_logits_equal_the_uncut_model(tiny_model: TinyModel, family: str, first: int, last: int) -> None:
    folder = tiny_model(family)
    whole = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = whole(tokens()).logits
        actual = split_logits(parts_of(settings_of(folder, first, last)), tokens())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert expected.std() > 0.1, "logits this flat would hide an error"


@pytest.mark.parametrize("family", FAMILIES)
def test_load_whole_equals_from_pretrained(tiny_model: TinyModel, family: str) -> None:
    folder = tiny_model(family)
    expected = AutoModelForCausalLM.from_pretrained(folder).eval()
    actual = load_whole(settings_of(folder))
    assert {n: p.shape for n, p in actual.named_parameters()} == {n: p.shape for n, p in expected.named_parameters()}
    with torch.no_grad():
        torch.testing.assert_close(actual(tokens()).logits, expected(tokens()).logits, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_the_uncut_model(tiny_model: TinyModel, family: str) -> None:
    settings = settings_of(tiny_model(family))
    whole = load_whole(settings)
    whole(tokens(), labels=tokens()).loss.backward()
    head, middle, tail = parts_of(settings)
    logits = split_logits((head, middle, tail), tokens())
    whole.loss_function(logits=logits, labels=tokens(), vocab_size=logits.shape[-1]).backward()
    expected = dict(whole.named_parameters())
    seen = 0
    for part in (head, middle, tail):
        for name, parameter in part.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[whole_name(part, name)].grad, rtol=1e-4, atol=1e-6)
            seen += 1
    shared = getattr(whole.config, "tie_word_embeddings", False)
    assert seen == len(expected) + int(shared), "a parameter of the whole model is in no part"


def whole_name(part: Any, name: str) -> str:
    family = part.family
    if name == "lm_head.weight":
        tied = part.config.tie_word_embeddings
        return f"{family.body_attribute}.{family.embedding}.weight" if tied else name
    name = name.removeprefix("body.")
    if name.startswith(f"{family.layers}."):
        number, rest = name.removeprefix(f"{family.layers}.").split(".", 1)
        name = f"{family.layers}.{int(number) + part.first_layer}.{rest}"
    return f"{family.body_attribute}.{name}"


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_decoding_equals_the_uncut_model(tiny_model: TinyModel, family: str) -> None:
    """Prefill of 12, then single tokens, across the edge of the sliding window."""
    settings = settings_of(tiny_model(family))
    parts, ids = parts_of(settings), tokens()
    with torch.no_grad():
        expected = load_whole(settings)(ids).logits
        caches = tuple(part.new_cache() for part in parts)
        pieces = [split_logits(parts, ids[:, :12], caches=caches)]
        pieces += [split_logits(parts, ids[:, at : at + 1], caches=caches) for at in range(12, POSITIONS)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_leaves_real_positions_alone(tiny_model: TinyModel, family: str, side: str) -> None:
    """A padded row gives at its real positions what it gives alone, and the split gives what the uncut model gives."""
    settings = settings_of(tiny_model(family))
    parts, ids, short = parts_of(settings), tokens(2), 9
    mask = torch.ones_like(ids)
    hidden_positions = slice(0, POSITIONS - short) if side == "left" else slice(short, POSITIONS)
    mask[1, hidden_positions] = 0
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    with torch.no_grad():
        actual = split_logits(parts, ids, attention_mask=mask, position_ids=positions)
        whole = load_whole(settings)(ids, attention_mask=mask, position_ids=positions).logits
        alone = split_logits(parts, ids[1:][mask[1:] == 1].unsqueeze(0))
    torch.testing.assert_close(actual[mask == 1], whole[mask == 1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual[1][mask[1] == 1], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_middle_holds_its_layers_and_nothing_else(tiny_model: TinyModel, family: str) -> None:
    settings = settings_of(tiny_model(family))
    middle = load_middle(settings)
    held = {name.removeprefix("body.").split(".", 1)[0] for name in middle.state_dict()}
    assert held == {middle.family.layers}
    assert len(getattr(middle.body, middle.family.layers)) == 2
    assert not any(264 in parameter.shape for parameter in middle.parameters())


def test_tied_head_and_tail_share_one_parameter(tiny_model: TinyModel) -> None:
    head, tail = load_head_and_tail(settings_of(tiny_model("llama")))
    assert tail.lm_head.weight is head.embedding.weight
    untied = load_tail(settings_of(tiny_model("llama")))
    torch.testing.assert_close(untied.lm_head.weight, load_head(settings_of(tiny_model("llama"))).embedding.weight)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_part_computes_in_the_dtype_asked_for(tiny_model: TinyModel, dtype: str) -> None:
    settings = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4, dtype=dtype)  # type: ignore[arg-type]
    parts = parts_of(settings)
    expected = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert all(part.dtype == expected for part in parts)
    with torch.no_grad():
        assert split_logits(parts, tokens()).dtype == expected


def test_the_final_soft_cap_of_a_family_is_kept(tiny_model: TinyModel) -> None:
    settings = settings_of(tiny_model("gemma3_text"))
    tail = load_tail(settings)
    normed = torch.randn(1, 2, tail.hidden_width, generator=torch.Generator().manual_seed(1)) * 100
    uncapped = tail.logits(normed)
    tail.config.final_logit_softcapping = 3.0
    assert uncapped.abs().max() > 3.0
    assert tail.logits(normed).abs().max() <= 3.0
