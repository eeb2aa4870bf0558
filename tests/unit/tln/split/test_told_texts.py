"""The truth must know every text that was generated or scored, and the text of every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from splitwire.bundles import TextTruth
from tln.context import RowTruth
from tln.texts import TextLog

PAD, END = 258, 257


class Told:
    """Stands for a truth writer and for a forward listener; keeps what it is told."""

    def __init__(self) -> None:
        self.documents: list[str] = []
        self.texts: list[TextTruth] = []
        self.rows: list[RowTruth] = []

    def add_documents(self, documents: Sequence[Mapping[str, Any]]) -> int:
        self.documents += [one["id"] for one in documents]
        return len(self.documents) - len(documents)

    def add_text(self, text: TextTruth) -> None:
        self.texts.append(text)

    def __call__(self, _context: Any, truth: RowTruth | None, _messages: Any) -> None:
        assert truth is not None
        self.rows.append(truth)

    def read(self) -> dict[int, dict[int, set[int]]]:
        """Document to order to the tokens that crossed there."""
        found: dict[int, dict[int, set[int]]] = {}
        for rows in self.rows:
            for document, order, token in zip(
                *(getattr(rows, name)[rows.real].tolist() for name in ("document", "order", "token")), strict=True
            ):
                found.setdefault(document, {}).setdefault(order, set()).add(token)
        return found


@pytest.fixture
def told(split: Callable[..., Any]) -> tuple[Any, Told]:
    """A split model, and what the truth is told about it."""
    pair, truth = split("llama"), Told()
    pair.model.texts = TextLog(truth)  # type: ignore[arg-type]
    pair.crossing.forward_listeners.append(truth)
    return pair.model, truth


def left_padded(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    return batch.masked_fill(mask == 0, PAD), mask


def test_every_text_of_a_padded_batch_is_a_document_without_its_padding(
    told: tuple[Any, Told], batch: torch.Tensor
) -> None:
    """In parts, with the mask that is given or the one that padding implies."""
    model, truth = told
    model.prefill_positions = 8
    tokens, mask = left_padded(batch)
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": PAD}
    output = model.generate(tokens, attention_mask=mask, **options)
    model.generate(tokens, **options)
    assert truth.documents == [f"text-{number}" for number in range(1, 7)]
    rows = truth.read()
    for text in truth.texts:
        row, padding = text.document % 3, int(text.document % 3 == 0) * 5
        assert text.tokens.tolist() == output[row, padding:].tolist()
        assert text.num_prompt == 12 - padding
        assert rows[text.document] == {order: {token} for order, token in enumerate(text.tokens.tolist()[:-1])}


def test_beams_carry_the_document_of_their_prompt(told: tuple[Any, Told], batch: torch.Tensor) -> None:
    """Rows of dropped beams too; two sequences that are returned for a prompt are two texts of its document."""
    model, truth = told
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4, "min_new_tokens": 4}
    model.generate(batch[:2], do_sample=False, pad_token_id=PAD, **options)
    assert [text.document for text in truth.texts] == [0, 0, 1, 1]
    rows = truth.read()
    assert set(rows) == {0, 1}
    for text in truth.texts:
        crossed = text.tokens.tolist()[:-1]
        assert all(token in rows[text.document][order] for order, token in enumerate(crossed))


def test_an_answer_ends_with_its_end(told: tuple[Any, Told], batch: torch.Tensor) -> None:
    """Padding after the end is not the answer's, also where the end pads."""
    model, truth = told
    inputs = batch[:1, :4]
    output = torch.cat([inputs, torch.tensor([[9, END, END, END]])], dim=1)
    documents = model.texts.begin(1)
    model.texts.end_generation(documents, inputs, output, {"eos_token_id": [END, 3], "pad_token_id": END})
    assert truth.texts[0].tokens.tolist() == [*inputs[0].tolist(), 9, END]
    assert truth.texts[0].num_prompt == 4


def test_a_pass_without_a_cache_is_all_of_its_texts(told: tuple[Any, Told], batch: torch.Tensor) -> None:
    """As an evaluation harness makes them."""
    model, truth = told
    with torch.no_grad():
        model(batch)
    assert [text.tokens.tolist() for text in truth.texts] == batch.tolist()
    assert set(truth.read()) == {0, 1, 2}
