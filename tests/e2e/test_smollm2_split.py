"""The real small model: what was converted is right, and the split of it computes what the whole computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import (
    ModelSettings,
    fingerprint,
    load_config,
    load_head_and_tail,
    load_middle,
    load_tokenizer,
    load_whole,
)

pytestmark = pytest.mark.e2e

PROMPT = "The capital of France is"
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def model_settings(smollm2: Path) -> ModelSettings:
    return ModelSettings(source=str(smollm2), first_layer=5, last_layer=25)


def test_the_model_is_what_it_should_be(model_settings: ModelSettings) -> None:
    config = load_config(model_settings)
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.vocab_size, config.rope_parameters["rope_theta"]) == (49_152, 100_000.0)


def test_the_tokenizer_splits_digits_and_has_a_chat_template(model_settings: ModelSettings) -> None:
    """White space before a digit is where the GGUF reader's tokenizer goes wrong."""
    tokenizer = load_tokenizer(model_settings)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("in 1945")) == ["in", "\u0120", "1", "9", "4", "5"]
    assert tokenizer.decode(tokenizer.encode("in 1945, over 20 %")) == "in 1945, over 20 %"
    assert "assistant" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )


@torch.no_grad()
def test_it_predicts_text(model_settings: ModelSettings) -> None:
    """A wrong conversion, rotary base or tying would not get the capital."""
    tokenizer = load_tokenizer(model_settings)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    answer = load_whole(model_settings)(ids).logits[0, -1].argmax()
    assert tokenizer.decode(answer).strip() == "Paris"


@torch.no_grad()
def test_greedy_decoding_over_the_split_equals_the_whole(model_settings: ModelSettings) -> None:
    ids = load_tokenizer(model_settings)(PROMPT, return_tensors="pt").input_ids
    whole = load_whole(model_settings)
    expected = whole.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None)[0, ids.shape[1] :]
    head, tail = load_head_and_tail(model_settings)
    actual = greedy(head, load_middle(model_settings), tail, ids, 24)
    assert actual == expected.tolist()


def greedy(head: Any, middle: Any, tail: Any, ids: torch.Tensor, count: int) -> list[int]:
    caches = [part.new_cache() for part in (head, middle, tail)]
    made: list[int] = []
    for _ in range(count):
        hidden = middle(head(ids, cache=caches[0]), cache=caches[1])
        ids = tail.logits(tail(hidden, cache=caches[2])[:, -1:]).argmax(-1)
        made.append(int(ids))
    return made


def test_a_node_with_four_layers_takes_the_memory_of_four_layers(model_settings: ModelSettings) -> None:
    """The middle has no embedding: 4 of 30 layers are 54 MiB of the model's 513 MiB."""
    grown = {part: _resident_growth(model_settings.source, part) for part in ("load_middle", "load_whole")}
    assert grown["load_middle"] < 100 * MEBIBYTE
    assert grown["load_whole"] > 400 * MEBIBYTE


def _resident_growth(source: str, loader: str) -> int:
    """Bytes that a fresh process grows by when it loads a part and touches every parameter of it."""
    code = f"""
import psutil, torch
from splitwire import backbone
backbone.load_config(settings := backbone.ModelSettings(source={source!r}, first_layer=13, last_layer=17))
assert backbone.FAMILIES["llama"].causal_class and torch.ones(2, 2).sum()  # imports and thread pools are not the model
before = psutil.Process().memory_info().rss
part = backbone.{loader}(settings)
sum(float(parameter.sum()) for parameter in part.parameters())
print(psutil.Process().memory_info().rss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_the_fingerprint_is_quick_the_second_time(
    model_settings: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look reads no weights."""
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path))
    first = fingerprint(model_settings)
    from splitwire.backbone import digest  # noqa: PLC0415 - patched here only

    monkeypatch.setattr(digest, "_digest", lambda _: pytest.fail("the weights were read again"))
    assert fingerprint(model_settings) == first
