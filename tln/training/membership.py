"""What a run does so that an audit can measure membership: canaries, and frames of both sides under like conditions.

Canaries are documents whose id begins with `corpus.canary_prefix`. Those that train come many times an epoch, the
others are held out like any document. An instrument that cannot tell the two apart shows nothing. Refused: a prefix
that no document has.

Frames of members cross while they train, those of held-out documents once training has ended, so the frames alone would
tell when they crossed. `train.membership_blocks` sends blocks of both as evaluation frames at the end, in random order.
"""

from __future__ import annotations

import torch

from splitwire.errors import SettingsError
from tln.keys import KeyStream
from tln.model import SplitModelForCausalLM
from tln.training.corpus import Blocks, CorpusSettings, Membership
from tln.training.progress import Progress
from tln.training.utility import split_losses


def check_canaries(blocks: Blocks, settings: CorpusSettings) -> None:
    """SettingsError for a prefix that no document with a block has: the run would have no canary and seem to have."""
    if settings.canary_prefix and not any(name.startswith(settings.canary_prefix) for name in blocks.ids):
        raise SettingsError(
            f"corpus.canary_prefix is {settings.canary_prefix!r} and no document that fills a block has such an id",
            remedy="name a prefix of some ids, or leave it empty for no canaries",
        )


def training_blocks(membership: Membership, blocks: Blocks, settings: CorpusSettings) -> torch.Tensor:
    """Block numbers of one epoch: every block of every member, those of canaries `canary_repeats` times."""
    train = membership.train
    if not settings.canary_prefix:
        return train
    is_canary = torch.tensor([name.startswith(settings.canary_prefix) for name in blocks.ids])
    repeats = torch.where(is_canary[blocks.documents[train]], settings.canary_repeats, 1)
    return train.repeat_interleave(repeats)


def membership_blocks(membership: Membership, blocks: Blocks, count: int, stream: KeyStream) -> torch.Tensor:
    """As many block numbers of members as of held-out documents, at most `count` each, mixed.

    A second block of a document comes only when every other one has its first.
    """
    sides = [_one_a_document(numbers, blocks, stream) for numbers in (membership.train, membership.held_out)]
    kept = min(count, *(len(side) for side in sides))
    chosen = torch.cat([side[:kept] for side in sides])
    return chosen[torch.from_numpy(stream.permutations(1, len(chosen))[0])]


def cross_membership_blocks(
    model: SplitModelForCausalLM, blocks: Blocks, chosen: torch.Tensor, batch_blocks: int, progress: Progress
) -> None:
    """Sends the chosen blocks as evaluation frames, whole, on any stack."""
    if len(chosen):
        sent = Blocks(blocks.tokens[chosen], blocks.labels[chosen], blocks.documents[chosen], blocks.ids, 0)
        split_losses(model, sent, "transformer", batch_blocks, progress)


def _one_a_document(numbers: torch.Tensor, blocks: Blocks, stream: KeyStream) -> torch.Tensor:
    """These block numbers in random order, first blocks of every document first, then second ones."""
    shuffled = numbers[torch.from_numpy(stream.permutations(1, len(numbers))[0])]
    seen: dict[int, int] = {}
    rounds = []
    for document in blocks.documents[shuffled].tolist():
        rounds.append(seen.get(document, 0))
        seen[document] = rounds[-1] + 1
    return shuffled[torch.tensor(rounds).argsort(stable=True)]
