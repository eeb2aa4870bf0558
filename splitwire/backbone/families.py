"""The model families that can be cut: where each keeps its embedding, layers and final norm, and the names on disk.

A family's own base model class from transformers computes every part, with a config that counts only the part's
layers. So masks, rotary positions, sliding windows and caches are the family's own code. Refused with ModelError: any
other family, and GPT-2 with attention scaled by layer number, which a part with its own numbering would compute
wrongly.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import transformers

from splitwire.errors import ModelError


@dataclass(frozen=True)
class Family:
    """One architecture. Attribute names are those of its base model class; `checkpoint_prefixes` are tried in order.

    Classes are found by name when they are needed, so that a process imports the one family that it runs.
    """

    name: str
    body_name: str
    causal_name: str
    embedding: str = "embed_tokens"
    position_embedding: str = ""
    layers: str = "layers"
    norm: str = "norm"
    body_attribute: str = "model"
    checkpoint_prefixes: tuple[str, ...] = ("model.", "")

    @property
    def body_class(self) -> type[Any]:
        """The base model class: embedding, layers, final norm."""
        return _class(self.body_name)

    @property
    def causal_class(self) -> type[Any]:
        """The base model with lm_head."""
        return _class(self.causal_name)


def _class(name: str) -> type[Any]:
    found: type[Any] = getattr(transformers, name)
    return found


_GEMMA3_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("llama", "LlamaModel", "LlamaForCausalLM"),
        Family("qwen2", "Qwen2Model", "Qwen2ForCausalLM"),
        Family("qwen3", "Qwen3Model", "Qwen3ForCausalLM"),
        Family("mistral", "MistralModel", "MistralForCausalLM"),
        Family(
            "gemma3_text",
            "Gemma3TextModel",
            "Gemma3ForCausalLM",
            checkpoint_prefixes=_GEMMA3_PREFIXES,
        ),
        Family(
            "gpt2",
            "GPT2Model",
            "GPT2LMHeadModel",
            embedding="wte",
            position_embedding="wpe",
            layers="h",
            norm="ln_f",
            body_attribute="transformer",
            checkpoint_prefixes=("transformer.", ""),
        ),
    )
}


def family_of(config: Any) -> Family:
    """The family of a text config; ModelError lists the supported ones when it is none of them."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ModelError(
            f"model family {config.model_type!r} is not supported", remedy=f"use one of {', '.join(sorted(FAMILIES))}"
        )
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise ModelError(
            "model sets scale_attn_by_inverse_layer_idx, which cannot be cut", remedy="use a model without it"
        )
    return family


def checkpoint_prefix(family: Family, names: Iterable[str]) -> str:
    """What stands before the base model's own parameter names in a checkpoint with these tensor names."""
    known = set(names)
    for prefix in family.checkpoint_prefixes:
        if any(name.startswith(f"{prefix}{family.layers}.0.") for name in known):
            return prefix
    raise ModelError(
        f"checkpoint has no tensor {family.layers}.0.* of family {family.name}",
        remedy="check that the weights belong to the config beside them",
    )


def slice_config(config: Any, first: int, last: int) -> Any:
    """A copy of the config that describes layers [first, last) alone, renumbered from 0."""
    part = copy.deepcopy(config)
    layer_types = getattr(config, "layer_types", None)
    part.num_hidden_layers = last - first
    if layer_types is not None:
        part.layer_types = list(layer_types[first:last])
    return part
