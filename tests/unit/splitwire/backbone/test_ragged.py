"""Sequences that run together get the answers that they get alone, whatever their lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import ModelSettings, RaggedInput, load_head, load_middle, load_tail, step_together, why_alone
from splitwire.errors import ModelError

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
LENGTHS = (1, 3, 7, 8, 9, 20)  # around the sliding window of 8 and beyond it
STEPS = 4

TinyModel = Callable[[str], Path]


def settings_of(folder: Path) -> ModelSettings:
    return ModelSettings(source=str(folder), first_layer=2, last_layer=5)


def rows_of(part: Any, batch: int, positions: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if part.first_layer == 0:
        return torch.randint(0, 256, (batch, positions), generator=generator)
    return torch.randn(batch, positions, part.hidden_width, generator=generator)


def filled(part: Any, lengths: tuple[int, ...]) -> list[Any]:
    caches = [part.new_cache() for _ in lengths]
    for number, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        part(rows_of(part, 1, length, number), cache=cache)
    return caches


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("load", [load_head, load_middle, load_tail])
def test_sequences_of_many_lengths_equal_those_alone(tiny_model: TinyModel, family: str, load: Any) -> None:
    part = load(settings_of(tiny_model(family)))
    alone, together = filled(part, LENGTHS), filled(part, LENGTHS)
    for step in range(STEPS):
        rows = [rows_of(part, 1, 1, 100 * step + number) for number in range(len(LENGTHS))]
        expected = [part(own, cache=cache) for own, cache in zip(rows, alone, strict=True)]
        inputs = [RaggedInput(own, cache) for own, cache in zip(rows, together, strict=True)]
        actual = step_together(part, inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert [a.argmax(-1).item() for a in actual] == [e.argmax(-1).item() for e in expected]
    assert expected[0].std() > 0.1, "rows this flat would hide an error"


@pytest.mark.parametrize("family", FAMILIES)
def test_several_new_positions_and_padded_groups_mix(tiny_model: TinyModel, family: str) -> None:
    """A prefill, a piece of 5 positions on top of 6, single positions, and a left-padded pair, in one pass."""
    part = load_middle(settings_of(tiny_model(family)))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, :4] = False

    def caches() -> list[Any]:
        made = [part.new_cache(), *filled(part, (6, 11)), part.new_cache()]
        part(rows_of(part, 2, 8, 50), mask[:, :8].long(), _positions(mask[:, :8]), made[-1])
        return made

    rows = [rows_of(part, batch, new, new) for batch, new in ((1, 10), (1, 5), (1, 1), (2, 1))]
    masks = [None, None, None, mask]
    ids = [None, None, None, _positions(mask)[:, -1:]]
    alone, together = caches(), caches()
    expected = [
        part(own, None if one is None else one.long(), positions, cache)
        for own, one, positions, cache in zip(rows, masks, ids, alone, strict=True)
    ]
    inputs = [RaggedInput(*given) for given in zip(rows, together, masks, strict=True)]
    torch.testing.assert_close(step_together(part, inputs), expected, rtol=1e-4, atol=1e-5)
    again = [RaggedInput(own[:, :1], cache) for own, cache in zip(rows[:3], together[:3], strict=True)]
    expected = [part(given.rows, cache=cache) for given, cache in zip(again, alone[:3], strict=True)]
    torch.testing.assert_close(step_together(part, again), expected, rtol=1e-4, atol=1e-5)


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.long().cumsum(-1) - 1).masked_fill(~mask, 0)


def test_sequences_join_leave_and_are_cropped_between_steps(tiny_model: TinyModel) -> None:
    part = load_middle(settings_of(tiny_model("llama")))
    alone, together = filled(part, (4, 9, 2)), filled(part, (4, 9, 2))
    for step, present in enumerate([(0, 1), (1,), (2, 1, 0), (0, 2)]):
        if step == 2:
            for caches in (alone, together):
                caches[1].crop(-3)
        rows = {number: rows_of(part, 1, 1, 10 * step + number) for number in present}
        expected = [part(rows[number], cache=alone[number]) for number in present]
        actual = step_together(part, [RaggedInput(rows[number], together[number]) for number in present])
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_pass_that_fails_leaves_every_cache_as_it_was(tiny_model: TinyModel, family: str) -> None:
    part = load_middle(settings_of(tiny_model(family)))
    caches = [*filled(part, (3, 12)), part.new_cache()]
    inputs = [RaggedInput(rows_of(part, 1, 1, number), cache) for number, cache in enumerate(caches)]

    def fail(*_arguments: Any) -> None:
        raise RuntimeError("no memory left")

    hook = part.body.layers[-1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no memory left"):
        step_together(part, inputs)
    hook.remove()
    assert [cache.get_seq_length() for cache in caches] == [3, 12, 0]
    fresh = [*filled(part, (3, 12)), part.new_cache()]
    expected = [part(given.rows, cache=cache) for given, cache in zip(inputs, fresh, strict=True)]
    torch.testing.assert_close(step_together(part, inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_pass_is_the_same_to_the_last_bit_after_a_ragged_one(tiny_model: TinyModel, family: str) -> None:
    part = load_middle(settings_of(tiny_model(family)))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    rows = rows_of(part, 2, 12, 1)
    before = [part(rows, mask), part(rows, cache=part.new_cache())]
    step_together(part, [RaggedInput(rows[:1, :1], part.new_cache())])
    torch.testing.assert_close([part(rows, mask), part(rows, cache=part.new_cache())], before, rtol=0, atol=0)


def test_parts_that_cannot_say_why(tiny_model: TinyModel) -> None:
    part = load_middle(settings_of(tiny_model("llama")))
    assert why_alone(part) == ""
    part.config._attn_implementation = "eager"
    with pytest.raises(ModelError, match="attention is eager"):
        step_together(part, [RaggedInput(rows_of(part, 1, 1, 0), part.new_cache())])
    part.config._attn_implementation = "sdpa"
    part.config.rope_parameters = {**part.config.rope_parameters, "rope_type": "dynamic"}
    assert "longest sequence" in why_alone(part)
