"""Captured texts to read: the rows of whole sequences on every hop, the public model, and public text to learn from.

In an inference bundle a text is one cache of one session: its prompt crossed in frames of many positions, its answer
position by position. In a training bundle it is one sequence of a batch, and its gradient crossed as well. Rows are as
they crossed, decoded to float32. Tokens are with the scorer alone.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from auditor.arrays import Integers
from auditor.public_model import PublicModel


@dataclass(frozen=True, eq=False)
class CapturedText:
    """Rows [T, H] of one text on each hop; None where that hop did not carry it.

    `num_prompt` is how many positions came before the untrusted node saw the first single one; T where all came at
    once. It is read from the sizes of the frames, which no defence here hides.
    """

    forward: torch.Tensor
    returned: torch.Tensor | None
    gradient: torch.Tensor | None
    input_gradient: torch.Tensor | None
    num_prompt: int


@dataclass(frozen=True, eq=False)
class KnownPlaintext:
    """Token ids [T] of a text whose forward rows [T, H] crossed: the attacker sent it in, or has learned it since."""

    tokens: Integers
    forward: torch.Tensor


@dataclass(frozen=True, eq=False)
class PromptView:
    """What an inversion attack is given. `auxiliary` are token ids [T] of public texts, none of them a victim's."""

    family: str
    texts: tuple[CapturedText, ...]
    model: PublicModel
    auxiliary: tuple[Integers, ...]
    wire_dtype: str
    """Dtype of the FORWARD frames: fp32, bf16, fp16 or int8."""
    seed: int
    known: tuple[KnownPlaintext, ...] = ()
    """Texts of train documents, declared known plaintext; never one of `texts`. Black-box attacks learn from them."""
