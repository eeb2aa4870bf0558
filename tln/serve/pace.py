"""How long a step waits for texts that are still under way, so that those that belong together stay together.

A step that begins with the first answer alone would go on with one text and leave the rest to the next step, and the
batches fall apart. A step that waits for all would stand still with the slowest. So it waits no longer than an ordinary
exchange takes, and not at all for a text that is late: one that waits for room or for a node that is coming back.
"""

from __future__ import annotations

_SHARE = 0.2
"""How much the last exchange counts in the running mean."""
_LATE = 3.0
"""Times an ordinary exchange after which a text is not waited for."""
_MOST_SECONDS = 0.5
"""Longest wait of a step, however slow exchanges are."""


class Pace:
    """Follows the duration of decode exchanges."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @property
    def patience_seconds(self) -> float:
        """How long a step waits after the first answer."""
        return min(self._seconds, _MOST_SECONDS)

    def note(self, seconds: float) -> None:
        """One decode exchange ended after so long."""
        self._seconds = seconds if not self._seconds else (1 - _SHARE) * self._seconds + _SHARE * seconds

    def is_late(self, seconds: float) -> bool:
        """Whether a text that was sent so long ago is not to be waited for."""
        return seconds > _LATE * self.patience_seconds
