"""Head, middle and tail of a causal language model: each is the family's own base model with only its layers.

All three are called alike, `part(rows, attention_mask, position_ids, cache) -> hidden [B, T, H]`, where rows are
token ids [B, T] for the head and hidden states [B, T, H] for the others. `attention_mask` is [B, past + T] with 1 for
real positions (None when all are real), `position_ids` [B, T] (None: counted from the cache's length, padding or
not), and `cache` a transformers Cache of this part's own layers, from `new_cache()`.

What a part does not own is not there: the middle has no embedding, no final norm and no lm_head, GPT-2's position
embedding and embedding dropout are in the head alone, Gemma's embedding scale too. Parameters require gradients, as
after from_pretrained; parts come in eval mode.

B sequences, T new positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from splitwire.backbone.families import Family
from splitwire.backbone.growing import GrowingLayer


class ZeroPositions(nn.Module):
    """Stands where a learned position embedding was: positions were added in the head."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """A scalar zero, which broadcasts and leaves the dtype of the rows alone."""
        return torch.zeros((), device=position_ids.device)


class BackbonePart(nn.Module):
    """Layers [first_layer, last_layer): `body` is the family's base model, `config` counts its layers only."""

    def __init__(self, body: Any, family: Family, first_layer: int, last_layer: int) -> None:
        super().__init__()
        self.body = body
        self.family = family
        self.first_layer = first_layer
        self.last_layer = last_layer

    @property
    def config(self) -> Any:
        """The family's config, cut to this part."""
        return self.body.config

    @property
    def hidden_width(self) -> int:
        """H."""
        return int(self.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        parameter: nn.Parameter = next(self.body.parameters())
        return parameter.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters, which is that of the computation."""
        parameter: nn.Parameter = next(self.body.parameters())
        return parameter.dtype

    def new_cache(self) -> DynamicCache:
        """An empty cache for this part's layers: sliding ones keep no more than their window, others grow in place."""
        cache = DynamicCache(config=self.config)
        cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        return cache

    def run(
        self,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None,
        **rows: torch.Tensor,
    ) -> torch.Tensor:
        """One pass of the base model over `input_ids` or `inputs_embeds`; hidden [B, T, H]."""
        output = self.body(
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=cache is not None,
            **rows,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


class HeadModel(BackbonePart):
    """Embedding and layers [0, first_layer). Takes token ids; only a trusted node holds it."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Hidden [B, T, H] of token ids [B, T]."""
        return self.run(attention_mask, position_ids, cache, input_ids=input_ids)

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding."""
        embedding: nn.Embedding = getattr(self.body, self.family.embedding)
        return embedding


class _RowsPart(BackbonePart):
    def forward(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Hidden [B, T, H] after this part's layers."""
        return self.run(attention_mask, position_ids, cache, inputs_embeds=hidden)


class MiddleModel(_RowsPart):
    """The delegated layers alone: rows in, rows out."""


class TailModel(_RowsPart):
    """The last layers, the final norm and `lm_head`. Calling it gives normed hidden states; `logits` finishes."""

    def __init__(self, body: Any, family: Family, first_layer: int, last_layer: int, lm_head: nn.Linear) -> None:
        super().__init__(body, family, first_layer, last_layer)
        self.lm_head = lm_head

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Scores [.., V] of normed hidden states [.., H], with the family's soft cap if it has one."""
        logits: torch.Tensor = self.lm_head(normed)
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap
