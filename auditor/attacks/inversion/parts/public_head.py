"""The public head run from embeddings, so that a guess can be improved by gradients.

A guess lives in the units of the embedding table as published. `scale` is what the family multiplies it by (Gemma's
square root of the width, 1 elsewhere); position embeddings, where a family has them, are added by the head itself.

Shapes: B texts of one length, T positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.public_model import PublicModel
from splitwire.backbone import HeadModel


@dataclass(frozen=True, eq=False)
class PublicHead:
    """Head with frozen weights, and its embedding table [V, H] in float32."""

    head: HeadModel
    table: torch.Tensor
    scale: float

    @property
    def device(self) -> torch.device:
        """Where guesses have to be."""
        return self.head.device

    def rows(self, embeddings_BTH: torch.Tensor) -> torch.Tensor:
        """Rows [B, T, H] at the cut of embeddings [B, T, H], in float32; gradients reach the embeddings."""
        scaled_BTH = (embeddings_BTH * self.scale).to(self.head.dtype)
        return self.head.run(None, None, None, inputs_embeds=scaled_BTH).float()

    @torch.no_grad()
    def rows_of_tokens(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Rows [B, T, H] at the cut of token ids [B, T]."""
        hidden: torch.Tensor = self.head(tokens_BT.to(self.device))
        return hidden.float()


def public_head(model: PublicModel, device: str) -> PublicHead:
    """The model's head on this device. Its weights are frozen in place: an audit never trains the public model."""
    head = model.head.to(device).requires_grad_(False)
    table_VH = head.embedding.weight.detach().float()
    sample = torch.arange(min(len(table_VH), 256), device=table_VH.device)
    scale = float(head.embedding(sample).float().norm() / table_VH[sample].norm())
    return PublicHead(head, table_VH, scale)
