"""Stop strings: the text before the first one, and never a part of one that might still be completed.

Text comes in pieces of any size. What could be the beginning of a stop string is held back until the next piece
decides; what is held when the text ends was no stop string and belongs to the text.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Follows one text. `has_stopped` once a stop string was found; nothing comes after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.has_stopped = False

    def push(self, piece: str) -> str:
        """Text that is certain now, held text included.

        Of several stop strings the one that is complete first counts, whatever the pieces; then the longest.
        """
        held = self._held + piece
        found = [(place + len(stop), place) for stop in self._stops if (place := held.find(stop)) >= 0]
        if found:
            self.has_stopped, self._held = True, ""
            return held[: min(found)[1]]
        keep = self._longest_beginning(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back: the text has ended."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        """How many characters at the end of `text` may begin a stop string."""
        longest = min(len(text), max((len(stop) - 1 for stop in self._stops), default=0))
        for count in range(longest, 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0
