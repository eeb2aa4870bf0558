"""What crosses once training has ended: held-out blocks for the utility gate, and frames of both sides for membership.

Everything crosses under the defence of the training. Which blocks are taken follows from the run key.
"""

from __future__ import annotations

import torch

from tln.keys import RunKey
from tln.model import SplitModelForCausalLM
from tln.settings import TlnSettings
from tln.training.corpus import Blocks, Membership
from tln.training.membership import cross_membership_blocks, membership_blocks
from tln.training.prepare import Prepared
from tln.training.progress import Progress
from tln.training.utility import Utility, compare, judge, split_losses

SET_UP_SCOPE = "set-up"
"""Scope of the streams that belong to no session: who is held out, and what is evaluated."""


def held_out_utility(
    settings: TlnSettings,
    model: SplitModelForCausalLM,
    run_key: RunKey,
    blocks: Blocks,
    prepared: Prepared,
    membership: Membership,
    progress: Progress,
) -> Utility:
    """The utility gate on at most `train.max_evaluation_blocks` held-out blocks."""
    held_out = membership.held_out
    order = torch.from_numpy(run_key.stream(SET_UP_SCOPE, 0, "evaluation").permutations(1, len(held_out))[0])
    chosen = held_out[order][: settings.train.max_evaluation_blocks or None]
    scored = Blocks(blocks.tokens[chosen], blocks.labels[chosen], blocks.documents[chosen], blocks.ids, 0)
    losses = split_losses(model, scored, settings.stack.kind, settings.train.frames_per_step, progress)
    utility = judge(
        losses,
        prepared.baseline_nats[chosen],
        scored.documents,
        settings.train.utility_ceiling_nats,
        run_key.stream(SET_UP_SCOPE, 0, "bootstrap"),
    )
    hidden, size = prepared.hidden[chosen], settings.train.frames_per_step
    return compare(utility, model, scored, hidden, settings.stack.kind, size, progress)


def cross_members(
    settings: TlnSettings,
    model: SplitModelForCausalLM,
    run_key: RunKey,
    blocks: Blocks,
    membership: Membership,
    progress: Progress,
) -> None:
    """Evaluation frames of members and held-out documents, when the settings ask for them."""
    count = settings.train.membership_blocks
    if count:
        chosen = membership_blocks(membership, blocks, count, run_key.stream(SET_UP_SCOPE, 0, "membership-frames"))
        cross_membership_blocks(model, blocks, chosen, settings.train.frames_per_step, progress)
