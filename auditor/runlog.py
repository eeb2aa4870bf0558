"""What belongs to one run of an audit and not to its result: when it ran, for how long, on what.

It goes to run.json, beside the result: audit.json holds nothing that another machine or another day would change.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from auditor.workers import num_workers
from splitwire.bundles.manifest import utc_now

RUN_SCHEMA = "splitwire.run/1"


class RunLog:
    """Times of one audit, begun when it is made. Parts are named `attack/family`."""

    def __init__(self) -> None:
        self._created = utc_now()
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._num_resumed = 0

    def add(self, part: str, seconds: float, *, resumed: bool = False) -> None:
        """Notes how long a part took; an earlier run took it when it is `resumed`."""
        self._seconds[part] = round(seconds, 3)
        self._num_resumed += resumed

    def tree(self) -> dict[str, Any]:
        """Plain values. `seconds` are those of this process alone; those of parts may be of an earlier one."""
        return {
            "schema": RUN_SCHEMA,
            "created": self._created,
            "seconds": round(time.monotonic() - self._began, 3),
            "seconds_by_part": dict(self._seconds),
            "num_resumed_parts": self._num_resumed,
            "num_workers": num_workers(),
            "platform": platform.platform(),
        }
