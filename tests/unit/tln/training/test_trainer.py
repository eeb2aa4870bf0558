"""The loop's parts that no wire is needed for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from splitwire.errors import SettingsError
from tln.keys import RunKey
from tln.training.corpus import Blocks
from tln.training.loss_history import mean_of_last
from tln.training.settings import TrainSettings, check_train
from tln.training.text import TrainingText
from tln.training.trainer import freeze_parts, learning_rate_factor


class _Model(nn.Module):
    """Head, pipeline and tail of one weight each."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.pipeline, self.tail = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)


def _orders(num_blocks: int, frames_per_step: int, count: int, secret: bytes = bytes(32)) -> list[torch.Tensor]:
    """Block numbers of the first `count` steps; every other block trains."""
    tokens = torch.zeros(num_blocks, 4, dtype=torch.int64)
    blocks = Blocks(tokens, tokens, torch.zeros(num_blocks, dtype=torch.int64), ("a",), 0)
    text = TrainingText(blocks, torch.arange(0, num_blocks, 2), torch.zeros(num_blocks, 4, 2), None)
    return list(itertools.islice(text.orders(frames_per_step, RunKey(secret), "train"), count))


def test_every_epoch_takes_every_member_block_once() -> None:
    """Over whole epochs each training block comes equally often, held-out ones never; batches never shrink."""
    batches = _orders(num_blocks=20, frames_per_step=4, count=10)
    assert all(len(batch) == 4 for batch in batches)
    counts = torch.bincount(torch.cat(batches), minlength=20)
    assert counts.tolist() == [4, 0] * 10


def test_the_order_is_fresh_every_epoch_and_follows_from_the_run_key() -> None:
    """Two epochs differ, two runs with one key do not, another key gives another order."""
    first = torch.cat(_orders(40, 10, 4))
    assert not torch.equal(first[:20], first[20:])
    assert torch.equal(first, torch.cat(_orders(40, 10, 4)))
    assert not torch.equal(first, torch.cat(_orders(40, 10, 4, b"x" * 32)))


def test_more_frames_a_step_than_blocks() -> None:
    """A small text fills a step with several epochs."""
    assert len(_orders(num_blocks=6, frames_per_step=8, count=1)[0]) == 8


@pytest.mark.parametrize(("head", "tail"), [(False, False), (True, False), (False, True), (True, True)])
def test_only_what_the_settings_name_is_trained(head: bool, tail: bool) -> None:
    """The pipeline always, head and tail on request."""
    model: Any = _Model()
    freeze_parts(model, TrainSettings(train_head=head, train_tail=tail))
    assert model.pipeline.weight.requires_grad
    assert (model.head.weight.requires_grad, model.tail.weight.requires_grad) == (head, tail)
    assert not model.training


def test_the_learning_rate_warms_up() -> None:
    """Linear from the first step, then constant; without warm-up constant."""
    assert [learning_rate_factor(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert learning_rate_factor(0, 0) == 1.0


def test_the_final_loss_is_that_of_the_last_tenth() -> None:
    """One noisy step does not decide; short runs have at least one value."""
    assert mean_of_last([9.0] * 18 + [1.0, 3.0]) == 2.0
    assert mean_of_last([5.0, 4.0]) == 4.0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (TrainSettings(), "out is empty"),
        (TrainSettings(out="x", steps=0), "steps is 0"),
        (TrainSettings(out="x", frames_per_step=0), "frames_per_step is 0"),
        (TrainSettings(out="x", learning_rate=0.0), "learning_rate is 0.0"),
        (TrainSettings(out="x", learning_rate=1e30), r"learning_rate is 1e\+30"),
        (TrainSettings(out="x", learning_rate=float("nan")), "learning_rate is nan"),
        (TrainSettings(out="x", remote_learning_rate=1e7), "remote_learning_rate is 10000000"),
        (TrainSettings(out="x", warmup_steps=-1), "warmup_steps is -1"),
    ],
)
def test_unusable_settings_are_named(settings: TrainSettings, named: str) -> None:
    """Field and value."""
    with pytest.raises(SettingsError, match=named):
        check_train(settings)
