"""What a session has answered, so that a request that comes again is answered again and not applied twice.

A request is known by (hop, step) and the SHA-256 of its messages exactly as received. The last answer is always
kept, earlier ones within a budget of bytes; digests outlive their answers. Refused with ReplayError: a known (hop,
step) with other bytes, and one whose answer is no longer kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from splitwire.errors import ReplayError
from splitwire.v1 import channels_pb2

_MAX_DIGESTS = 4096

Key = tuple[int, int]
"""(hop, step)."""


@dataclass
class _Entry:
    digest: str
    messages: Sequence[bytes] | None
    num_bytes: int


class ReplyCache:
    """The answers of one session, newest last."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._with_messages: OrderedDict[Key, None] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_digests(self) -> int:
        """Requests that are remembered."""
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of the answers that are kept."""
        return self._num_bytes

    def find(self, key: Key, digest: str) -> Sequence[bytes] | None:
        """The kept answer to this request, None for a new one, ReplayError for another request of the same name."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.digest != digest:
            raise ReplayError(
                f"{_name(key)} was already taken with other bytes",
                remedy="resend the bytes that were sent first, or take the next step number",
            )
        if entry.messages is None:
            raise ReplayError(
                f"{_name(key)} was already taken and its answer is no longer kept", remedy="take the next step number"
            )
        return entry.messages

    def keep(self, key: Key, digest: str, messages: Sequence[bytes]) -> None:
        """Keeps the answer to `key` and lets go of the oldest ones over the budget."""
        num_bytes = sum(map(len, messages))
        self._entries[key] = _Entry(digest, messages, num_bytes)
        self._with_messages[key] = None
        while self._num_bytes > self._max_bytes and len(self._with_messages) > 1:
            self._drop_oldest()
        self._num_bytes += num_bytes
        while len(self._entries) > _MAX_DIGESTS:
            oldest, entry = self._entries.popitem(last=False)
            if self._with_messages.pop(oldest, False) is None:
                self._num_bytes -= entry.num_bytes

    def _drop_oldest(self) -> None:
        oldest, _ = self._with_messages.popitem(last=False)
        entry = self._entries[oldest]
        entry.messages, self._num_bytes = None, self._num_bytes - entry.num_bytes


def _name(key: Key) -> str:
    hop = channels_pb2.Hop.Name(key[0]).removeprefix("HOP_")
    return f"{hop} of step {key[1]}"
