"""Frames whose rows tell their next token as much as a test wants, with the truth about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tln.adversaries import Adversaries, AdversarySettings
from tln.context import NO_LABEL, ProtectedFrame, RowTruth
from tln.keys import RunKey

NUM_TOKENS, HIDDEN_WIDTH, ROW_WIDTH = 8, 16, 6

MakeAdversaries = Callable[..., Adversaries]
MakeBatch = Callable[..., tuple[torch.Tensor, torch.Tensor]]
MakeFrame = Callable[..., ProtectedFrame]


@pytest.fixture
def make_adversaries() -> MakeAdversaries:
    """make_adversaries(secret=bytes(32), **settings) for 8 tokens, rows of width 6 and hidden rows of width 16."""

    def make(secret: bytes = bytes(32), **settings: Any) -> Adversaries:
        return Adversaries(
            AdversarySettings(**{"warmup_steps": 0, "learning_rate": 5e-3, "hidden_width": 32} | settings),
            row_width=ROW_WIDTH,
            hidden_width=HIDDEN_WIDTH,
            labels=torch.arange(NUM_TOKENS).repeat(4),
            vocabulary_size=NUM_TOKENS,
            is_permuted=True,
            run_key=RunKey(secret),
        )

    return make


@pytest.fixture
def batch() -> MakeBatch:
    """batch(seed, num=8, length=16): hidden [N, T, 16] and labels [N, T].

    The first 8 values are the label one-hot, the next 4 are noise that an encoder is to keep.
    """

    def make(seed: int, num: int = 8, length: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, NUM_TOKENS, (num, length), generator=generator)
        hidden = torch.randn(num, length, HIDDEN_WIDTH, generator=generator)
        hidden[..., :NUM_TOKENS] = torch.nn.functional.one_hot(labels, NUM_TOKENS).float()
        return hidden, labels

    return make


@pytest.fixture
def frame_of() -> MakeFrame:
    """frame_of(rows [N, T, D], labels, num_decoys=0): the last rows are declared decoys; the first label is missing."""

    def make(rows: torch.Tensor, labels: torch.Tensor, num_decoys: int = 0) -> ProtectedFrame:
        num, length = labels.shape
        real = torch.ones(num, length, dtype=torch.bool)
        real[:, length - num_decoys :] = False
        label = labels.clone()
        label[0, 0] = NO_LABEL
        order = torch.arange(length).expand(num, length)
        return ProtectedFrame(rows, RowTruth(real, order, labels, label, torch.zeros_like(labels)))

    return make
