"""One forward pass of a part for several independent sequences, each with a key-value cache of its own length.

The new positions of all sequences lie one after another in a single row [1, N, H]: the linear layers, which read
every weight, see them together, and attention runs for each sequence over its own cache, as it does alone. So nothing
is padded, no cache is copied into a common one, and caches can be cropped, reordered or dropped between steps without
touching each other. This is the selective batching of Yu et al., "Orca" (OSDI 2022, section 3.2). An answer differs
from the one alone only by the rounding of a matrix product of more rows.

b sequences of one cache, t new positions, H hidden width, D head width, N positions of all caches together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from splitwire.backbone.parts import BackbonePart
from splitwire.errors import ModelError

_NAME = "splitwire_ragged"
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True)
class RaggedInput:
    """The new positions of one cache: token ids [b, t] for a head, hidden states [b, t, H] for the other parts.

    `mask` [b, past + t] is True for real positions, None when all are; a cache's new positions are counted from it.
    """

    rows: torch.Tensor
    cache: Cache
    mask: torch.Tensor | None = None


def why_alone(part: BackbonePart) -> str:
    """Why this part cannot run caches together, for a person to read; empty when it can."""
    attention = part.config._attn_implementation  # noqa: SLF001 - transformers has no public name for it
    if attention not in ("sdpa", _NAME):
        return f"attention is {attention}, not sdpa"
    if _rope_types(part.config) & _LENGTH_DEPENDENT_ROPE:
        return "its rotary frequencies depend on the longest sequence of a batch"
    return ""


def step_together(part: BackbonePart, inputs: Sequence[RaggedInput]) -> list[torch.Tensor]:
    """Hidden states [b, t, H] of each input after the part, in order; every cache grows by its t positions.

    Caches must be different objects. ModelError for a part that cannot (see `why_alone`). When anything raises, all
    caches are as they were before.
    """
    reason = why_alone(part)
    if reason:
        raise ModelError(f"the {part.family.name} layers cannot run caches together: {reason}", remedy="run each alone")
    part.config._attn_implementation = _NAME  # noqa: SLF001 - with plain caches this is sdpa itself
    batch = _RaggedCache([_Segment.of(given) for given in inputs])
    before = [[dict(vars(layer)) for layer in given.cache.layers] for given in inputs]
    packed = torch.cat([given.rows.reshape(1, -1, *given.rows.shape[2:]) for given in inputs], dim=1)
    positions = torch.cat([segment.position_ids() for segment in batch.segments], dim=1).to(packed.device)
    unused_mask = torch.empty(1, 1, 1, 1, device=packed.device)  # four dimensions: transformers builds none of its own
    try:
        hidden = part(packed, unused_mask, positions, cast("Cache", batch))
    except BaseException:
        for given, layers in zip(inputs, before, strict=True):
            _restore(given.cache, layers)
        raise
    pieces = hidden.split([given.rows.shape[0] * given.rows.shape[1] for given in inputs], dim=1)
    return [piece.reshape(*given.rows.shape[:2], -1) for piece, given in zip(pieces, inputs, strict=True)]


@dataclass(frozen=True)
class _Segment:
    """Where one cache's positions lie, and what they may see; masks are made once a step, not once a layer."""

    cache: Cache
    num_sequences: int
    num_new: int
    past: int
    mask: torch.Tensor | None
    seen: dict[tuple[int, int], torch.Tensor | None] = field(default_factory=dict)

    @classmethod
    def of(cls, given: RaggedInput) -> _Segment:
        num_sequences, num_new = given.rows.shape[:2]
        return cls(given.cache, num_sequences, num_new, given.cache.get_seq_length(), given.mask)

    @property
    def num_rows(self) -> int:
        return self.num_sequences * self.num_new

    def position_ids(self) -> torch.Tensor:
        """[1, b * t]: how many real positions come before; 0 for padding."""
        if self.mask is None:
            counted = torch.arange(self.past, self.past + self.num_new).repeat(self.num_sequences, 1)
        else:
            real = self.mask.cpu()
            counted = (real.long().cumsum(-1) - 1).masked_fill(~real, 0)[:, -self.num_new :]
        return counted.reshape(1, -1)

    def visible(self, num_keys: int, window: int, device: torch.device) -> torch.Tensor | None:
        """[b or 1, 1, t, num_keys], True where a new position sees a key; None when each sees all of them."""
        key = (num_keys, window)
        if key not in self.seen:
            self.seen[key] = self._visible(num_keys, window, device)
        return self.seen[key]

    def _visible(self, num_keys: int, window: int, device: torch.device) -> torch.Tensor | None:
        if self.mask is None and self.num_new == 1:
            return None  # a sliding layer hands over no more than its window
        total = self.past + self.num_new
        columns = torch.arange(total - num_keys, total, device=device)
        rows = torch.arange(self.past, total, device=device).unsqueeze(1)
        allowed = (columns <= rows) & (columns > rows - window)
        if self.mask is None:
            return allowed[None, None]
        return allowed & self.mask[:, None, None, -num_keys:].to(device)


class _RaggedCache:
    """Takes the place of a cache for one pass: gives each segment's keys and values to that segment's own cache."""

    is_compileable = False

    def __init__(self, segments: Sequence[_Segment]) -> None:
        self.segments = segments

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[_Stored, _Stored]:
        """New keys and values [1, heads, N, D]; what attention gets instead is everything stored, by segment."""
        stored, start = [], 0
        for segment in self.segments:
            end = start + segment.num_rows
            own_keys, own_values = (_unpacked(tensor[:, :, start:end], segment) for tensor in (keys, values))
            layer: Any = segment.cache.layers[layer_idx]
            window = layer.sliding_window if layer.is_sliding else segment.past + segment.num_new
            stored.append((segment, *segment.cache.update(own_keys, own_values, layer_idx), window))
            start = end
        both = _Stored(stored)
        return both, both


@dataclass(frozen=True)
class _Stored:
    """For each segment the keys and values [b, heads, num_keys, D] of one layer, and the layer's window."""

    segments: list[tuple[_Segment, torch.Tensor, torch.Tensor, int]]


def _attention(
    module: torch.nn.Module, query: torch.Tensor, key: Any, value: Any, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """sdpa; over the segments of a ragged step one after another. Gives [B, T, heads, D]."""
    if not isinstance(key, _Stored):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    outputs, start = [], 0
    for segment, keys, values, window in key.segments:
        end = start + segment.num_rows
        own = _unpacked(query[:, :, start:end], segment)
        seen = segment.visible(keys.shape[2], window, query.device)
        output, _ = sdpa_attention_forward(module, own, keys, values, seen, **options)
        outputs.append(output.reshape(1, segment.num_rows, *output.shape[2:]))
        start = end
    return torch.cat(outputs, dim=1), None


def _unpacked(tensor: torch.Tensor, segment: _Segment) -> torch.Tensor:
    """[1, heads, b * t, D] as [b, heads, t, D]."""
    if segment.num_sequences == 1:
        return tensor
    heads, width = tensor.shape[1], tensor.shape[3]
    return tensor.reshape(heads, segment.num_sequences, segment.num_new, width).transpose(0, 1)


def _restore(cache: Cache, layers: Sequence[dict[str, Any]]) -> None:
    for layer, attributes in zip(cache.layers, layers, strict=True):
        vars(layer).clear()
        vars(layer).update(attributes)


def _rope_types(config: Any) -> set[str]:
    """Names of the rotary schemes of a config, which holds one, or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    schemes = [found, *(value for value in found.values() if isinstance(value, dict))]
    return {str(scheme["rope_type"]) for scheme in schemes if "rope_type" in scheme}


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)
