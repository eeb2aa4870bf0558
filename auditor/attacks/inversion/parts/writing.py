"""What an encoder-decoder writes, and the tokens of the public model that it stands for.

Shapes: C tokens that it can name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

_PAD, _END, _START, _FIRST = 0, 1, 2, 3


class Writing(Protocol):
    """Ids of an encoder-decoder for texts of the public model, and back."""

    def encode(self, tokens: torch.Tensor) -> list[int]:
        """Ids of tokens [T], with an end."""
        ...

    def decode(self, ids: Sequence[int]) -> list[int]:
        """Tokens of ids, up to the end."""
        ...


class OwnWriting:
    """The tokens of the texts that are learned from, numbered anew; for an encoder-decoder made from nothing."""

    pad, end, start = _PAD, _END, _START

    def __init__(self, texts: Sequence[torch.Tensor]) -> None:
        self._tokens_C = torch.unique(torch.cat([text.flatten().cpu() for text in texts]))
        self.size = len(self._tokens_C) + _FIRST

    def encode(self, tokens: torch.Tensor) -> list[int]:
        """Ids of tokens [T] that are all known, with an end."""
        ids: list[int] = (torch.searchsorted(self._tokens_C, tokens.cpu()) + _FIRST).tolist()
        return [*ids, _END]

    def decode(self, ids: Sequence[int]) -> list[int]:
        """Tokens of ids, up to the end."""
        tokens = []
        for number in ids:
            if number == _END:
                break
            if number >= _FIRST:
                tokens.append(int(self._tokens_C[number - _FIRST]))
        return tokens


class ForeignWriting:
    """Through text: the public model's tokenizer to text, the encoder-decoder's tokenizer to ids, and back."""

    def __init__(self, public: Any, foreign: Any, end: int, max_length: int) -> None:
        self._public, self._foreign = public, foreign
        self._end, self._max_length = end, max_length

    def encode(self, tokens: torch.Tensor) -> list[int]:
        """Ids of the text, cut to the maximal length, with an end."""
        text = self._public.decode(tokens.tolist(), clean_up_tokenization_spaces=False)
        ids = self._foreign(text, add_special_tokens=False)["input_ids"]
        return [*ids[: self._max_length - 1], self._end]

    def decode(self, ids: Sequence[int]) -> list[int]:
        """Tokens of the text that was written."""
        text = self._foreign.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        tokens: list[int] = self._public(text, add_special_tokens=False)["input_ids"]
        return tokens
