"""What a training step brings beside its own blocks."""

from __future__ import annotations

import pytest
import torch

from splitwire.errors import SettingsError
from tln.context import NO_LABEL
from tln.keys import RunKey
from tln.mechanisms.base import BatchDemand
from tln.training.batches import StepBatch, make_batch, replayed_blocks

KEY = RunKey(bytes(32))
MEMBERS = torch.arange(0, 40, 2)


def test_replayed_blocks_are_members_other_than_their_own() -> None:
    """None twice in a group, none of the group's own, all of the others about equally often."""
    groups = MEMBERS.repeat(200).view(-1, 1)
    chosen = replayed_blocks(groups, MEMBERS, 3, KEY.stream("test", 1, "x"))
    assert chosen.shape == (4000, 3)
    assert (chosen != groups).all()
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    counts = torch.bincount(chosen.flatten(), minlength=40)
    assert not counts[1::2].any()
    assert counts[::2].min() > 0.85 * 600


def test_a_step_brings_the_real_blocks_first_and_is_repeatable() -> None:
    """The same step again is the same batch; another step draws others."""
    demand = BatchDemand(num_groups=4, num_replayed=2)
    first, again, other = (make_batch(demand, MEMBERS[:4], MEMBERS, 8, KEY, step) for step in (1, 1, 2))
    assert first.numbers[:4].tolist() == MEMBERS[:4].tolist()
    assert first.num_replayed == 8 == len(first.numbers) - 4
    assert torch.equal(first.numbers, again.numbers)
    assert not torch.equal(first.numbers, other.numbers)


def test_too_few_blocks_are_refused() -> None:
    """Rather than one twice."""
    with pytest.raises(SettingsError, match="20 training blocks are too few to replay 20 beside 1 real"):
        make_batch(BatchDemand(2, 20), MEMBERS[:2], MEMBERS, 8, KEY, 1)


def test_the_number_of_real_rows_is_uniform_over_its_range() -> None:
    """From the least to a full block, both ends reached; rows that are not sent have no label."""
    real = torch.zeros(4000, dtype=torch.int64)
    batch = make_batch(BatchDemand(4000, min_real_rows=3), real, MEMBERS, 8, KEY, 1)
    assert batch.real_lengths is not None
    counts = torch.bincount(batch.real_lengths)
    assert len(counts) == 9
    assert not counts[:3].any()
    assert counts[3:].min() > 0.85 * 4000 / 6
    labels = batch.loss_labels(torch.ones(4000, 8, dtype=torch.int64))
    assert torch.equal((labels != NO_LABEL).sum(dim=1), batch.real_lengths)
    assert (labels[:, 0] == 1).all()


def test_without_a_demand_a_step_is_its_blocks() -> None:
    """Labels stay the very tensor."""
    batch, labels = make_batch(BatchDemand(), MEMBERS[:4], MEMBERS, 8, KEY, 1), torch.ones(4, 8)
    assert batch == StepBatch(batch.numbers)
    assert batch.loss_labels(labels) is labels
    assert batch.sent_rows(8) is None
