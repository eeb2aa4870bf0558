"""Returned rows, to finish with the public tail or to learn from (response_side).

The rows are as they crossed, not scaled. Texts of train documents are declared known plaintext: token ids of whole
sequences with their places among the rows, so that an attacker can compute what the public model makes of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from auditor.arrays import Integers
from auditor.channels import RESPONSE_SIDE
from auditor.evidence.capture import Capture
from auditor.evidence.splits import TRAIN, Splits
from auditor.plan import Plan
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError
from auditor.views.token import TokenKey, TokenView, token_view


@dataclass(frozen=True, eq=False)
class KnownText:
    """One text in reading order: places of its rows in the view [T] and their token ids [T]."""

    rows: Integers
    tokens: Integers


@dataclass(frozen=True, eq=False)
class ResponseView(TokenView):
    """A token view of returned rows with the texts of train documents and the public model, where it is known.

    `in_order` says that the rows of an item are positions of a text: a stack of real layers allows nothing else.
    """

    texts: tuple[KnownText, ...]
    in_order: bool
    model: PublicModel | None


def response_view(
    capture: Capture, splits: Splits, plan: Plan, model: PublicModel | None
) -> tuple[ResponseView, TokenKey, tuple[KnownText, ...]]:
    """The view, its answers, and for the scorer the texts of all its items."""
    if not (capture.items.returned_first >= 0).any():
        raise NotMeasurableError("no RETURN frame was captured: give a bundle that was recorded whole")
    view, key = token_view(capture, splits, RESPONSE_SIDE, plan)
    texts = _texts(capture, view, key)
    items = capture.rows.item[key.rows]
    known = tuple(text for text in texts if splits.by_item[items[text.rows[0]]] == TRAIN)
    in_order = not capture.items.by_row[items].any()
    return ResponseView(**vars(view), texts=known, in_order=in_order, model=model), key, texts


def _texts(capture: Capture, view: TokenView, key: TokenKey) -> tuple[KnownText, ...]:
    """The texts of all items: real rows of a gram frame in their order, whole sequences elsewhere."""
    rows, found = capture.rows, []
    for start, end in itertools.pairwise(view.offsets):
        mine = key.rows[start:end]
        by_row = capture.items.by_row[rows.item[mine[0]]]
        kept = (rows.token[mine] >= 0) & (rows.real[mine] if by_row else True)
        places = np.arange(start, end)[kept]
        places = places[np.argsort(rows.order[key.rows[places]], kind="stable")]
        if len(places):
            found.append(KnownText(places, rows.token[key.rows[places]]))
    return tuple(found)
