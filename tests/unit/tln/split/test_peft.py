"""PEFT adapters on head and tail train over the crossing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tln.stack_settings import StackSettings


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # inside peft
def test_adapters_on_head_and_tail_get_the_unsplit_models_gradients(
    split: Callable[..., Any], batch: torch.Tensor
) -> None:
    """The base weights get none, and generation goes on working."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    pair = split("llama", "training", StackSettings(trainable="none"))
    settings = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": True}
    ours = get_peft_model(pair.model, LoraConfig(**settings))
    theirs = get_peft_model(pair.whole, LoraConfig(**settings, layers_to_transform=[0, 1, 4, 5]))
    adapters = [dict(lora_parameters(model)) for model in (ours, theirs)]
    renamed = {unsplit_name(name): parameter for name, parameter in adapters[0].items()}
    assert set(renamed) == set(adapters[1])
    with torch.no_grad():
        for name, parameter in renamed.items():
            parameter.copy_(adapters[1][name].normal_(std=0.1, generator=torch.Generator().manual_seed(len(name))))
    for model in (ours, theirs):
        model(input_ids=batch, labels=batch).loss.backward()
    for name, parameter in renamed.items():
        torch.testing.assert_close(parameter.grad, adapters[1][name].grad, rtol=1e-4, atol=1e-6)
    assert pair.model.head.embedding.weight.grad is None


def lora_parameters(model: Any) -> Any:
    return ((name, parameter) for name, parameter in model.named_parameters() if "lora_" in name)


def unsplit_name(name: str) -> str:
    """Where the unsplit model keeps the adapter of this head or tail layer."""
    before, _, rest = name.partition(".body.layers.")
    number, _, leaf = rest.partition(".")
    offset = 4 if before.endswith("tail") else 0
    return f"{before.rpartition('.')[0]}.model.layers.{int(number) + offset}.{leaf}"
