"""Forward rows of all frames in order, to find blocks of text that crossed more than once (accumulated_history).

The attack is not told which frames carry the same block: it finds them. Which blocks do is the scorer's to know: only
their test rows are scored, and every block once, where it crossed last, so that repeats do not pass for more evidence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from auditor.arrays import Integers
from auditor.channels import ACCUMULATED_HISTORY, FORWARD_ONLY
from auditor.evidence.capture import Capture
from auditor.evidence.splits import Splits
from auditor.plan import Plan
from auditor.views.base import NotMeasurableError
from auditor.views.token import TokenKey, TokenView, token_view


@dataclass(frozen=True, eq=False)
class HistoryView(TokenView):
    """A token view whose items are in order of crossing. `has_gauge`: a rotation and a permutation may stand between
    two of them; a stack of real layers allows none.
    """

    has_gauge: bool


@dataclass(frozen=True, eq=False)
class HistoryKey:
    """For the scorer: the answers, and the block [F] of every item of the view; repeats have the same number."""

    token: TokenKey
    block: Integers
    real_rows: tuple[Integers, ...]
    """Places of every item's real rows in the order of their text."""


def history_view(capture: Capture, splits: Splits, plan: Plan) -> tuple[HistoryView, HistoryKey]:
    """Frames of blocks that repeat and of others, whole blocks up to the plan's limit."""
    blocks = _blocks(capture, splits)
    repeats = Counter(blocks.values())
    if max(repeats.values(), default=0) < 2:
        raise NotMeasurableError(
            "no text crossed twice: record two epochs or more, with train.steps x train.frames_per_step at least twice "
            "the number of training blocks"
        )
    chosen = _whole_blocks(blocks, _most_frames(capture, blocks, plan), plan.split.seed)
    view, key = token_view(capture, splits, FORWARD_ONLY, plan, items=chosen)
    items = capture.rows.item[key.rows[view.offsets[:-1]]]
    block = np.array([blocks[int(item)] for item in items], dtype=np.int64)
    last = {int(number): place for place, number in enumerate(block)}
    scored = {int(items[place]) for number, place in last.items() if repeats[number] > 1}
    view, key = _only(view, replace(key, num_items_available=len(blocks)), scored)
    has_gauge = bool(capture.items.by_row[items].any())
    real_rows = tuple(_real_rows(capture, view, key, place) for place in range(len(items)))
    return HistoryView(**vars(view) | {"family": ACCUMULATED_HISTORY}, has_gauge=has_gauge), HistoryKey(
        key, block, real_rows
    )


def _blocks(capture: Capture, splits: Splits) -> dict[int, int]:
    """Number of the block of every item of a split that holds real rows: the same document, places and tokens."""
    rows, items, numbers = capture.rows, capture.items, dict[bytes, int]()
    found = {}
    for item in np.flatnonzero(splits.by_item >= 0):
        part = slice(items.first[item], items.first[item] + items.num_rows[item])
        real = rows.real[part]
        text = np.stack([rows.document[part][real], rows.order[part][real], rows.token[part][real]])
        if text.size:
            name = text[:, np.lexsort(text)].tobytes()
            found[int(item)] = numbers.setdefault(name, len(numbers))
    return found


def _most_frames(capture: Capture, blocks: dict[int, int], plan: Plan) -> int:
    """As many as the plan names, and as fit its memory."""
    mean_bytes = max(1.0, 4 * capture.forward.width * float(capture.items.num_rows[list(blocks)].mean()))
    return min(plan.history.max_frames, max(1, int(plan.probe.max_view_bytes // mean_bytes)))


def _whole_blocks(blocks: dict[int, int], limit: int, seed: int) -> Integers:
    """Items of blocks in random order until the limit is reached, then in the order of crossing."""
    items, block = np.array(list(blocks)), np.array(list(blocks.values()))
    rank = np.random.default_rng(seed).permutation(block.max() + 1)
    order = np.argsort(rank[block], kind="stable")
    last = order[min(limit, len(order)) - 1]
    return np.sort(items[rank[block] <= rank[block[last]]])


def _only(view: TokenView, key: TokenKey, scored: set[int]) -> tuple[TokenView, TokenKey]:
    """The view and its key with the score rows of these items alone."""
    kept = np.isin(key.score_item, list(scored))
    view = replace(view, score_rows=view.score_rows[kept])
    key = replace(
        key,
        score_tokens=key.score_tokens[kept],
        score_split=key.score_split[kept],
        score_document=key.score_document[kept],
        score_item=key.score_item[kept],
    )
    return view, key


def _real_rows(capture: Capture, view: TokenView, key: TokenKey, place: int) -> Integers:
    mine = np.arange(view.offsets[place], view.offsets[place + 1])
    rows = key.rows[mine]
    real = capture.rows.real[rows]
    return np.asarray(mine[real][np.argsort(capture.rows.order[rows[real]], kind="stable")])
