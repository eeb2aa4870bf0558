"""The section [stack]: what the untrusted node computes for this one, and in which dtypes tensors cross.

What a node allows of it, that node says when a session is opened (tln.session).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from splitwire.errors import SettingsError
from tln.prefill import DEFAULT_PREFILL_POSITIONS

WireDtypeName = Literal["fp32", "bf16", "fp16", "int8"]
_MAX_COUNT = (1 << 31) - 1
"""Largest count that every field of the contract takes."""


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters on the untrusted node. No target modules means the attention projections of the family."""

    rank: int = 8
    """Rank of every adapter, at least 1."""
    alpha: float = 16.0
    """Adapters are scaled by alpha / rank."""
    target_modules: tuple[str, ...] = ()
    """Linear layers that get an adapter; empty for the attention projections of the family."""


@dataclass(frozen=True)
class RemoteOptimizerSettings:
    """AdamW of what the untrusted node trains. Its learning rate comes with each step."""

    beta1: float = 0.9
    """Decay rate of the first moment."""
    beta2: float = 0.999
    """Decay rate of the second moment."""
    epsilon: float = 1e-8
    """Added to the denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""


@dataclass(frozen=True)
class GramStackSettings:
    """Shape of the surrogate. Its width is that of the bottleneck."""

    num_experts: int = 8
    """Experts a layer."""
    num_layers: int = 2
    """Layers."""
    radial: bool = True
    """Whether experts read and change the norms of rows."""
    sign_invariant: bool = False
    """Whether a row may carry a secret sign."""


@dataclass(frozen=True)
class StackSettings:
    """What the untrusted node computes for us, and in which dtypes tensors cross."""

    kind: Literal["transformer", "gram"] = "transformer"
    """The model's own layers, or the gram surrogate trained in their place."""
    request_dtype: WireDtypeName = "fp32"
    """Dtype in which activations and gradients leave this node."""
    response_dtype: WireDtypeName = "fp32"
    """Dtype in which answers come back."""
    trainable: Literal["none", "full", "lora"] = "lora"
    """What the untrusted node trains of the layers: nothing, all, or low-rank adapters."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    optimizer: RemoteOptimizerSettings = field(default_factory=RemoteOptimizerSettings)
    gram: GramStackSettings = field(default_factory=GramStackSettings)
    max_cache_positions: int = 2048
    """Longest sequence, prompt included, that a session for generation may hold."""
    max_cache_sequences: int = 16
    """Most sequences, beams included, that one cache may hold."""
    prefill_positions: int = DEFAULT_PREFILL_POSITIONS
    """Most positions of a prompt that cross in one frame; 0 sends every prompt whole."""
    resume_checkpoint: str = ""
    """Label of a checkpoint on the untrusted node to start from; empty for none."""


def check_stack(settings: StackSettings) -> None:
    """SettingsError for a count that no message can carry; what it allows of the rest, the untrusted node says."""
    counts = {
        "lora.rank": settings.lora.rank,
        "gram.num_experts": settings.gram.num_experts,
        "gram.num_layers": settings.gram.num_layers,
        "max_cache_positions": settings.max_cache_positions,
        "max_cache_sequences": settings.max_cache_sequences,
    }
    for name, value in counts.items():
        if not 1 <= value <= _MAX_COUNT:
            raise SettingsError(f"stack.{name} is {value}", remedy=f"use 1 to {_MAX_COUNT}")
    if not 0 <= settings.prefill_positions <= _MAX_COUNT:
        raise SettingsError(
            f"stack.prefill_positions is {settings.prefill_positions}", remedy=f"use 0 (whole prompts) to {_MAX_COUNT}"
        )
