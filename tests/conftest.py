"""Fixtures for every test: offline, few threads, and tiny random models of each supported family."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
TINY_LAYERS = 6
TINY_WIDTH = 48
TINY_VOCABULARY = 264
TINY_POSITIONS = 128
SLIDING_WINDOW = 8

_SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "<unk>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_model(family) -> folder of a random checkpoint (6 layers, width 48) with a byte-level tokenizer.

    mistral and gemma3_text have a sliding window of 8 positions (gemma3_text in every layer but the third and the
    sixth), qwen2 has one in its last three layers. Weights are the same in every run.
    """
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = _write_tiny_model(family, tmp_path_factory.mktemp(f"tiny-{family}"))
        return made[family]

    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch on one thread while a module runs: tiny tensors are slower on two, and rounding is the same everywhere."""
    import torch  # noqa: PLC0415 - collecting tests must not load torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the embedded model, fetched into the cache by the first test that needs it; skips when it cannot."""
    from splitwire.backbone import fetch_embedded  # noqa: PLC0415 - collecting tests must not load torch
    from splitwire.errors import ModelError  # noqa: PLC0415

    try:
        return fetch_embedded()
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error.message}")


def _write_tiny_model(family: str, folder: Path) -> Path:
    import torch  # noqa: PLC0415 - collecting tests must not load torch
    import transformers  # noqa: PLC0415

    causal = "GPT2LMHeadModel" if family == "gpt2" else f"{_class_stem(family)}ForCausalLM"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20261130)
        model = getattr(transformers, causal)(_tiny_config(family))
        for parameter in model.parameters():  # the usual 0.02 would make every layer nearly the identity
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.12)
            else:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    _tiny_tokenizer().save_pretrained(folder)
    return folder


def _class_stem(family: str) -> str:
    return {"gemma3_text": "Gemma3"}.get(family, family.capitalize())


def _tiny_config(family: str) -> Any:
    import transformers  # noqa: PLC0415 - collecting tests must not load torch

    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=TINY_VOCABULARY,
            n_positions=TINY_POSITIONS,
            n_embd=TINY_WIDTH,
            n_layer=TINY_LAYERS,
            n_head=4,
            bos_token_id=256,
            eos_token_id=257,
            pad_token_id=258,
        )
    common = {
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": TINY_WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": TINY_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": TINY_POSITIONS,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "tie_word_embeddings": family not in {"mistral", "qwen3"},
    }
    if family == "mistral":
        return transformers.MistralConfig(**common, sliding_window=SLIDING_WINDOW)
    if family == "qwen2":
        return transformers.Qwen2Config(
            **common, use_sliding_window=True, sliding_window=SLIDING_WINDOW, max_window_layers=3
        )
    if family == "gemma3_text":
        layer_types = ["full_attention" if number % 3 == 2 else "sliding_attention" for number in range(TINY_LAYERS)]
        return transformers.Gemma3TextConfig(
            **common, head_dim=16, query_pre_attn_scalar=16, sliding_window=SLIDING_WINDOW, layer_types=layer_types
        )
    if family == "qwen3":
        return transformers.Qwen3Config(**common, head_dim=16)
    return transformers.LlamaConfig(**common)


def _tiny_tokenizer() -> Any:
    """256 bytes and four special tokens; every text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), _SPECIAL_TOKENS, strict=True)),
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast
