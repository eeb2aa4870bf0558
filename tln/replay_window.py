"""Notices an answer that the untrusted node gave before, to other rows, under another step.

The number of a step cannot come again: `tln.replies` takes an answer to the step, hop, dtype and shape that were asked
for and no other. Its content can, by a fault or by intent, and then rows of an old gauge would be undone under a new
one and trained on. So the window keeps the beginnings of the last frames and a digest of their answers, and refuses,
with ReplayError, an answer that is bit for bit an earlier one to a frame that was plainly another. Fresh gauges and
noise make every frame another, so no honest answer is refused; frames that are the same, or nearly so within the
rounding of the wire, may be answered the same.

What it does not do: a node that changes a value of an old answer is not noticed here; replicas are there for that.

It looks at the first 1024 values of a frame. Frames of less than 32 values, and answers that begin with zeros alone,
are let through. Keeps at most 4 KiB a frame.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import NamedTuple

import torch

from splitwire.errors import ReplayError
from tln.connection import DEFAULT_WINDOW
from tln.exchanges import Route

_LOOKED_AT = 1024
_MIN_VALUES = 32
_ROUNDING = 0.05
"""Frames that differ by less than this part of their largest value are not told apart; int8 rounds by .004."""


class _Answered(NamedTuple):
    """The beginning of a frame that was sent, float32 on the CPU, and where it went."""

    beginning: torch.Tensor
    route: Route


class ReplayWindow:
    """The last `size` answers of a session; 0 looks at none."""

    def __init__(self, size: int = DEFAULT_WINDOW) -> None:
        self._size = size
        self._seen: OrderedDict[bytes, _Answered] = OrderedDict()

    def check(self, route: Route, sent: torch.Tensor, answer: torch.Tensor) -> None:
        """ReplayError when `answer` came before, to rows plainly other than those that were `sent`. Same shapes."""
        if not self._size or answer.numel() < _MIN_VALUES:
            return
        answered = _beginning(answer)
        if not answered.any():
            return
        digest = hashlib.sha256(answered.view(torch.uint8).numpy().tobytes()).digest()
        asked = _Answered(_beginning(sent).to("cpu", torch.float32, copy=True), route)
        known = self._seen.get(digest)
        if known is not None and _are_plainly_other(known, asked):
            raise ReplayError(
                f"the peer's answer to {route} is the one it gave to {known.route}",
                remedy="the answer is not used; look at the untrusted node, and end the session",
            )
        self._seen[digest] = asked
        self._seen.move_to_end(digest)
        if len(self._seen) > self._size:
            self._seen.popitem(last=False)


def _beginning(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:_LOOKED_AT]


def _are_plainly_other(one: _Answered, other: _Answered) -> bool:
    if one.route.hop != other.route.hop or one.beginning.shape != other.beginning.shape:
        return True
    difference = (one.beginning - other.beginning).abs().max()
    return bool(difference > _ROUNDING * one.beginning.abs().max())
