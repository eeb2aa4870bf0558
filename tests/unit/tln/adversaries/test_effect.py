"""With adversaries on, a probe that training never saw reads less of the released rows, and utility stays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tln.adversaries import Adversaries
from tln.adversaries.heads import initialise
from tln.adversaries.invariants import gram_spread
from tln.context import ProtectedFrame, StepContext

NUM_TOKENS, HIDDEN_WIDTH, ROW_WIDTH, KEPT = 8, 16, 6, 12

MakeAdversaries = Callable[..., Adversaries]
MakeBatch = Callable[..., tuple[torch.Tensor, torch.Tensor]]
MakeFrame = Callable[..., ProtectedFrame]

NOISE = 0.1
STEPS = 150


class _Encoder(nn.Module):
    """Rows of width 6 from hidden rows, with noise; the decoder is to give 12 values back, the token among them."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(HIDDEN_WIDTH, ROW_WIDTH), nn.Tanh())
        self.decode = nn.Linear(ROW_WIDTH, KEPT)
        initialise(self, torch.Generator().manual_seed(1))

    def forward(self, hidden: torch.Tensor, seed: int) -> torch.Tensor:
        rows: torch.Tensor = self.encode(hidden)
        return rows + NOISE * torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))


def _train(adversaries: Adversaries | None, batch: MakeBatch, frame_of: MakeFrame) -> _Encoder:
    encoder = _Encoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        hidden, labels = batch(step)
        rows = encoder(hidden, step)
        loss = (encoder.decode(rows) - hidden[..., :KEPT]).square().mean(dim=(1, 2)).sum()
        if adversaries is not None:
            loss = loss + adversaries.step(frame_of(rows, labels), hidden, StepContext(step)).on(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder


@torch.no_grad()
def _released(encoder: _Encoder, batch: MakeBatch, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden, labels = batch(seed, num=64)
    return encoder(hidden, seed), labels, hidden


def _probe_accuracy(encoder: _Encoder, batch: MakeBatch) -> float:
    """Share of next tokens that a new network, fitted to 1,024 rows, reads from 1,024 others."""
    probe = nn.Sequential(nn.Linear(ROW_WIDTH, 64), nn.ReLU(), nn.Linear(64, NUM_TOKENS))
    initialise(probe, torch.Generator().manual_seed(9))
    rows, labels, _ = _released(encoder, batch, 1001)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        functional.cross_entropy(probe(rows.flatten(0, 1)), labels.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    rows, labels, _ = _released(encoder, batch, 1002)
    return float((probe(rows).argmax(dim=-1) == labels).double().mean())


def _error(encoder: _Encoder, batch: MakeBatch) -> float:
    rows, _, hidden = _released(encoder, batch, 1003)
    return float((encoder.decode(rows) - hidden[..., :KEPT])[..., NUM_TOKENS:].square().mean().detach())


def test_a_fresh_probe_reads_less_with_the_token_head(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """Chance is .125. What the decoder needs is still there."""
    plain = _train(None, batch, frame_of)
    defended = _train(make_adversaries(heads=("token",), warmup_steps=20), batch, frame_of)
    assert _probe_accuracy(plain, batch) > 0.5
    assert _probe_accuracy(defended, batch) < 0.3
    assert _error(defended, batch) < 2 * _error(plain, batch) + 0.1


def test_a_fresh_probe_reads_less_with_the_mine_penalty(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """The penalty alone, at a weight that matters here."""
    plain = _train(None, batch, frame_of)
    defended = _train(make_adversaries(mine_weight=1.0, warmup_steps=20), batch, frame_of)
    assert _probe_accuracy(defended, batch) < _probe_accuracy(plain, batch) - 0.2


def test_flattening_lowers_the_spread_of_fresh_frames(
    make_adversaries: MakeAdversaries, batch: MakeBatch, frame_of: MakeFrame
) -> None:
    """Frames that training never saw; the data ask for spread, so the two pull at each other."""
    plain, flat = _train(None, batch, frame_of), _train(make_adversaries(gram_weight=2.0), batch, frame_of)
    spreads = [gram_spread(_released(encoder, batch, 1004)[0]).mean().item() for encoder in (plain, flat)]
    assert spreads[1] < 0.7 * spreads[0]
