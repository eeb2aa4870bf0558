"""What a run does for an audit of membership: canaries come more often, and both sides cross alike."""

from __future__ import annotations

import pytest
import torch

from splitwire.errors import SettingsError
from tln.keys import KEY_BYTES, RunKey
from tln.training.corpus import Blocks, CorpusSettings, Membership
from tln.training.membership import check_canaries, membership_blocks, training_blocks

DOCUMENTS = torch.tensor([0, 0, 1, 2, 2, 3])
BLOCKS = Blocks(torch.zeros(6, 4), torch.zeros(6, 4), DOCUMENTS, ("canary-a", "b", "canary-c", "d"), 0)
MEMBERSHIP = Membership(torch.tensor([True, True, False, False]), torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5]))
STREAM = RunKey(bytes(KEY_BYTES)).stream("set-up", 0, "membership-frames")


def test_blocks_of_canaries_that_train_are_repeated() -> None:
    """And no others; a canary that was held out stays out."""
    settings = CorpusSettings(path="x", canary_prefix="canary-", canary_repeats=3)
    assert training_blocks(MEMBERSHIP, BLOCKS, settings).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert training_blocks(MEMBERSHIP, BLOCKS, CorpusSettings(path="x")) is MEMBERSHIP.train


def test_canaries_that_no_document_is_are_refused() -> None:
    """A typing error in the prefix would leave an audit without the control that it counts on."""
    check_canaries(BLOCKS, CorpusSettings(path="x", canary_prefix="canary-"))
    check_canaries(BLOCKS, CorpusSettings(path="x"))
    with pytest.raises(SettingsError, match="canary_prefix is 'canray-' and no document"):
        check_canaries(BLOCKS, CorpusSettings(path="x", canary_prefix="canray-"))


def test_both_sides_cross_alike_one_block_a_document_first() -> None:
    """As many members as held-out blocks, and no document twice before every one came once."""
    chosen = membership_blocks(MEMBERSHIP, BLOCKS, 2, STREAM)
    assert sorted(DOCUMENTS[chosen].tolist()) == [0, 1, 2, 3]
    everything = membership_blocks(MEMBERSHIP, BLOCKS, 100, STREAM)
    assert sorted(everything.tolist()) == [0, 1, 2, 3, 4, 5]
