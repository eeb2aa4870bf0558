"""Tells the sealed truth of whole texts: which document the rows of a sequence belong to, and its answer at the end.

    documents = texts.begin(2)                    indices into the documents table, one a sequence
    model(..., documents=documents)               every row that crosses is recorded with its document
    texts.end(documents[0], tokens, num_prompt)   prompt and answer, once the answer is known

`SplitModelForCausalLM.generate` does it by itself; whoever runs a decoding loop of their own does it as above. A text
that never ended (a run that failed) is known from its rows. Nothing of it crosses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from splitwire.bundles import TextTruth, TruthWriter


class TextLog:
    """The texts of one recording. Any thread may use it."""

    def __init__(self, truth: TruthWriter) -> None:
        self._truth = truth
        self._numbers = itertools.count(1)

    def begin(self, num_texts: int) -> torch.Tensor:
        """New documents, int64 [num_texts], for texts that are about to cross."""
        names = [f"text-{next(self._numbers)}" for _ in range(num_texts)]
        first = self._truth.add_documents([{"id": name, "member": False} for name in names])
        return torch.arange(first, first + num_texts)

    def end(self, document: int, tokens: Sequence[int], num_prompt: int) -> None:
        """Records a whole text: prompt and answer, without padding."""
        array = torch.tensor(list(tokens), dtype=torch.int32).numpy()
        self._truth.add_text(TextTruth(int(document), num_prompt, array))

    def end_generation(
        self, documents: torch.Tensor, inputs: torch.Tensor, output: Any, options: Mapping[str, Any]
    ) -> None:
        """Records what transformers' `generate` returned for prompts [B, T] with these options."""
        ends, mask = _token_ids(options.get("eos_token_id")), options.get("attention_mask")
        if mask is None:
            mask = _prompt_mask(inputs, options.get("pad_token_id"), ends)
        self.end_batch(documents, mask, output if isinstance(output, torch.Tensor) else output.sequences, ends)

    def end_batch(
        self, documents: torch.Tensor, mask_BT: torch.Tensor, sequences: torch.Tensor, ends: Sequence[int] = ()
    ) -> None:
        """Records sequences [B x returned, T + new] that begin with prompts under this mask [B, T].

        The answer is what follows the prompt up to the first token of `ends`. Several sequences of a prompt are
        several texts of its document.
        """
        width, returned = mask_BT.shape[1], len(sequences) // len(mask_BT)
        for row, sequence in enumerate(sequences.tolist()):
            real = mask_BT[row // returned].tolist()
            prompt = [token for token, is_real in zip(sequence[:width], real, strict=True) if is_real]
            answer = _until_end(sequence[width:], ends)
            self.end(int(documents[row // returned]), prompt + answer, len(prompt))


def _prompt_mask(inputs_BT: torch.Tensor, pad_token_id: Any, ends: Sequence[int]) -> torch.Tensor:
    """The mask [B, T] that `generate` assumes when it is given none: padding is what looks so and cannot be an end."""
    if pad_token_id is None or pad_token_id in ends:
        return torch.ones_like(inputs_BT)
    return inputs_BT.ne(pad_token_id).long()


def _token_ids(value: Any) -> list[int]:
    """A token id or several of a generation setting as a list; empty for None."""
    if value is None:
        return []
    return torch.as_tensor(value).reshape(-1).tolist()


def _until_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens
