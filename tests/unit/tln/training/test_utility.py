"""The utility gate: no look-ahead, by document, three outcomes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tln.context import StepContext
from tln.keys import KeyStream, RunKey
from tln.pipeline import FramePipeline
from tln.training.corpus import Blocks
from tln.training.losses import token_losses
from tln.training.progress import NoProgress
from tln.training.utility import Utility, bootstrap_interval, compare, judge, split_losses

VOCABULARY = 11
PUBLISHED = json.loads((Path(__file__).parents[3] / "vectors" / "utility.json").read_text())


class _Leaky:
    """A crossing that mixes all rows of a frame, as the gram stack does: row t then knows row t + 1."""

    def __init__(self) -> None:
        self.contexts: list[StepContext] = []

    def reserve_step(self) -> int:
        return len(self.contexts) + 1

    def cross(self, rows: torch.Tensor, context: StepContext, _truth: Any) -> torch.Tensor:
        self.contexts.append(context)
        return rows + rows.sum(dim=1, keepdim=True)


class _Tail(nn.Module):
    """Position-wise, so that only the crossing can look ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(VOCABULARY, 6, generator=torch.Generator().manual_seed(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        return normed @ self.weight.T


def _model() -> Any:
    embedding = nn.Embedding.from_pretrained(torch.randn(VOCABULARY, 6, generator=torch.Generator().manual_seed(2)))
    embedding.device = torch.device("cpu")  # type: ignore[assignment]
    return SimpleNamespace(head=embedding, tail=_Tail(), pipeline=FramePipeline(), crossing=_Leaky())


def _blocks(tokens: torch.Tensor) -> Blocks:
    return Blocks(tokens, tokens.roll(-1, 1), torch.arange(len(tokens)), tuple(map(str, range(len(tokens)))), 0)


def test_the_latent_stack_is_scored_without_look_ahead() -> None:
    """Changing a later token changes no earlier score, though the crossing itself mixes all rows of a frame."""
    tokens = torch.randint(0, VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(3))
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % VOCABULARY
    labels = _blocks(tokens).labels
    scores = [
        split_losses(_model(), Blocks(each, labels, torch.arange(3), ("a", "b", "c"), 0), "gram", 2, NoProgress())
        for each in (tokens, other)
    ]
    assert torch.allclose(scores[0][:, :4], scores[1][:, :4])
    assert not torch.allclose(scores[0][:, 4], scores[1][:, 4])


def test_the_same_crossing_scored_in_whole_blocks_does_look_ahead() -> None:
    """The positive control: block by block, as for causal layers, the leak would flatter the result."""
    tokens = torch.randint(0, VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(3))
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % VOCABULARY
    labels = _blocks(tokens).labels
    scores = [
        split_losses(
            _model(), Blocks(each, labels, torch.arange(3), ("a", "b", "c"), 0), "transformer", 2, NoProgress()
        )
        for each in (tokens, other)
    ]
    assert not torch.allclose(scores[0][:, 0], scores[1][:, 0])


def test_evaluation_crosses_in_batches_and_in_evaluate_mode() -> None:
    """One message a prefix length and batch; the truth about each frame is known."""
    model, tokens = _model(), torch.zeros(5, 4, dtype=torch.int64)
    split_losses(model, _blocks(tokens), "gram", 3, NoProgress())
    contexts = model.crossing.contexts
    assert [tuple(context.tokens.shape) for context in contexts] == [
        (batch, length) for batch in (3, 2) for length in (2, 2, 3, 4)
    ]
    assert {context.mode for context in contexts} == {"evaluate"}


def _stream() -> KeyStream:
    return RunKey(bytes(32)).stream("test", 0, "bootstrap")


def _judge(shift: float, spread: float, ceiling: float = 0.35, num: int = 40) -> Utility:
    base = torch.rand(num, 4, generator=torch.Generator().manual_seed(5)) + 3
    documents = torch.arange(num) // 2
    moved = shift + spread * (documents.unsqueeze(1) % 2 * 2.0 - 1)
    return judge(base + moved, base, documents, ceiling, _stream())


def test_the_gate_passes_fails_or_says_that_it_cannot_tell() -> None:
    """Only an interval wholly on one side of the ceiling decides."""
    assert _judge(0.1, 0.05).outcome == "passes"
    assert _judge(0.9, 0.05).outcome == "fails"
    assert _judge(0.35, 0.3).outcome == "inconclusive"


@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: f"{case['delta_nats']:.2f}")
def test_the_gate_reproduces_the_published_runs(case: dict[str, Any]) -> None:
    unsplit, split = (
        torch.full((40, 4), case[name], dtype=torch.float64) for name in ("baseline_nats", "candidate_nats")
    )
    utility = judge(split, unsplit, torch.arange(40), PUBLISHED["max_delta_nats"], _stream())
    assert utility.delta_nats == pytest.approx(case["delta_nats"], abs=1e-9)
    assert utility.outcome == ("passes" if case["passes"] else "fails")


def test_the_delta_is_split_minus_unsplit_by_token() -> None:
    """Documents count by their rows, and the interval holds the delta."""
    utility = _judge(0.2, 0.1)
    assert utility.delta_nats == pytest.approx(0.2, abs=1e-6)
    assert utility.split_nats - utility.unsplit_nats == pytest.approx(utility.delta_nats, abs=1e-5)
    assert utility.delta_lower_nats < 0.2 < utility.delta_upper_nats
    assert (utility.num_documents, utility.num_rows) == (20, 160)
    assert utility.note == ""


def test_few_documents_are_named() -> None:
    """Under 20 clusters the interval is too narrow, and the report says so."""
    assert "5 documents are few" in _judge(0.1, 0.05, num=10).note


def test_the_interval_is_over_documents_not_rows() -> None:
    """Two documents that differ give a wide interval, however many rows each has."""
    sums, counts = torch.tensor([0.0, 1000.0]).double().numpy(), torch.tensor([1000.0, 1000.0]).double().numpy()
    assert bootstrap_interval(sums, counts, _stream()) == (0.0, 1.0)


def test_a_lone_first_row_crosses_twice_where_no_decoy_is_beside_it() -> None:
    """The surrogate compares rows; the second copy tells nothing of later tokens."""
    model, tokens = _model(), torch.randint(0, VOCABULARY, (2, 4), generator=torch.Generator().manual_seed(4))
    split_losses(model, _blocks(tokens), "gram", 2, NoProgress())
    sent = [context.tokens for context in model.crossing.contexts]
    assert [rows.shape[1] for rows in sent if rows is not None] == [2, 2, 3, 4]
    assert sent[0] is not None
    assert torch.equal(sent[0], tokens[:, [0, 0]])


@pytest.mark.parametrize(("stack", "looks_ahead"), [("gram", True), ("transformer", False)])
def test_the_gate_is_told_beside_look_ahead_and_skipped_layers(stack: Any, looks_ahead: bool) -> None:
    """Whole frames are scored as well where a row can see later ones; skipping equals the tail on hidden rows."""
    model, blocks = _model(), _blocks(torch.randint(0, VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(5)))
    hidden = model.head(blocks.tokens)
    losses = split_losses(model, blocks, stack, 2, NoProgress())
    stream = RunKey.generate().stream("test", 0, "bootstrap")
    unsplit = torch.ones(3, 5)
    found = compare(
        judge(losses, unsplit, blocks.documents, 0.35, stream), model, blocks, hidden, stack, 2, NoProgress()
    )
    whole = split_losses(model, blocks, "transformer", 2, NoProgress()).mean().item() - 1.0
    skipped = token_losses(model.tail.logits(hidden), blocks.labels).mean().item() - 1.0
    assert found.skipped_delta_nats == pytest.approx(skipped, abs=1e-5)
    assert (found.look_ahead_delta_nats is not None) == looks_ahead
    if looks_ahead:
        assert found.look_ahead_delta_nats == pytest.approx(whole, abs=1e-5)
        assert abs(whole - found.delta_nats) > 1e-3
