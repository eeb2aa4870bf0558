"""What the truth is told of the rows of a pass must be right in a cache, under padding and in every part."""

from __future__ import annotations

import torch

from tln.context import NO_LABEL, StepContext
from tln.prefill import Part
from tln.told import next_tokens, pass_truth, text_positions


def test_next_tokens_end_with_the_row_and_at_padding() -> None:
    """Right and left padding."""
    labels = torch.tensor([[5, 6, 7, 8]])
    assert next_tokens(labels, None).tolist() == [[6, 7, 8, NO_LABEL]]
    assert next_tokens(labels, torch.tensor([[1, 1, 0, 0]])).tolist() == [[6, NO_LABEL, NO_LABEL, NO_LABEL]]
    assert next_tokens(labels, torch.tensor([[0, 0, 1, 1]])).tolist() == [[NO_LABEL, 7, 8, NO_LABEL]]


def test_positions_count_real_tokens_from_the_beginning_of_the_text() -> None:
    """Padding has none, and what is cached comes before."""
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert text_positions(tokens, None, 4).tolist() == [[4, 5, 6], [4, 5, 6]]
    left, right = torch.tensor([[0, 0, 1], [1, 1, 1]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert text_positions(tokens, left, 0).tolist() == [[-1, -1, 0], [0, 1, 2]]
    assert text_positions(tokens, right, 0).tolist() == [[0, 1, 2], [0, -1, -1]]
    grown = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    assert text_positions(tokens, grown, 3).tolist() == [[1, 2, 3], [3, 4, 5]]


def test_a_part_is_told_its_own_rows_and_the_label_that_begins_the_next() -> None:
    """So that no label is lost where a prompt was cut."""
    told = pass_truth(torch.tensor([[1, 2, 3, 4]]), None, 0, documents=torch.tensor([7]))
    context = StepContext(1)
    told.tell(context, Part(0, 2))
    assert context.tokens is not None
    assert context.labels is not None
    assert context.positions is not None
    assert (context.tokens.tolist(), context.labels.tolist()) == ([[1, 2]], [[2, 3]])
    assert (context.positions.tolist(), context.documents) == ([[0, 1]], told.documents)
