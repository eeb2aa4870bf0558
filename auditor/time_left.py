"""An estimate of how long an audit still takes, from what its attacks cost beside one another.

It begins from costs that were measured once (docs/audit.md) and leans on the seconds of this audit's own parts as they
come in. It is shown, and goes into no result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from auditor.plan import ProbeSettings
from auditor.progress import Progress
from auditor.workers import num_workers

_BOUNDED = {
    "latent_probe": 400.0,
    "model_completion": 100.0,
    "cross_gram": 100.0,
    "repeats": 70.0,
    "compromise_sweep": 5.0,
}
"""CPU seconds of an attack on one family of 1,000 frames of 80 rows; larger bundles meet a limit of the plan. Those of
latent_probe are for the probes of the default plan."""
_OTHERS = 1.5
"""The same of every other attack; it grows with the bundle."""
_ROWS = 80_000
_TRUSTED = 60.0
"""Seconds of finished parts that count as much as the costs measured once."""


class TimeLeft:
    """Seconds that the parts (attack, family) of one audit still take; `begin` and `end` go round each."""

    def __init__(self, pairs: Sequence[tuple[str, str]], num_rows: int, probe: ProbeSettings) -> None:
        size = max(1, num_rows) / _ROWS
        self._pairs = list(pairs)
        self._costs = {pair: _cost(pair[0], size, probe) for pair in pairs}
        self._before = 1 / num_workers()
        self._finished_cost = self._finished_seconds = self._began = 0.0

    def begin(self, pair: tuple[str, str], progress: Progress) -> Progress:
        """This part begins now, and says so. Its progress: every label stands behind its number and the time left."""
        self._began = time.monotonic()
        prefix = f"{self._pairs.index(pair) + 1}/{len(self._pairs)} {pair[0]} on {pair[1]}"

        def labelled(label: str, done: int, total: int) -> None:
            progress(f"{prefix}: {self.text(pair)}, {label}", done, total)

        labelled("starting", 0, 0)
        return labelled

    def end(self, pair: tuple[str, str], seconds: float, *, measured: bool) -> None:
        """This part is finished; one that could not be measured says nothing of the pace."""
        cost = self._costs.pop(pair)
        if measured:
            self._finished_cost += cost
            self._finished_seconds += seconds

    def text(self, pair: tuple[str, str]) -> str:
        """How long this part and those after it take, in words."""
        seconds = self.seconds(pair, time.monotonic() - self._began)
        return "less than a minute left" if seconds < 60 else f"about {seconds / 60:.0f} min left"

    def seconds(self, pair: tuple[str, str], elapsed: float) -> float:
        """The same in seconds, when this part has taken `elapsed` seconds."""
        own, known = self._costs[pair], self._before * _TRUSTED + self._finished_seconds
        cost = _TRUSTED + self._finished_cost
        pace = max(known / cost, (known + elapsed) / (cost + own))  # a part that is late says so before it ends
        return pace * (sum(self._costs.values()) - own) + max(0.0, pace * own - elapsed)


def _cost(name: str, size: float, probe: ProbeSettings) -> float:
    cost = _BOUNDED[name] * min(1.0, size) if name in _BOUNDED else _OTHERS * size
    return max(_OTHERS * size, cost * _epochs(probe) / _epochs(ProbeSettings())) if name == "latent_probe" else cost


def _epochs(probe: ProbeSettings) -> int:
    """Of all arms together."""
    return len(probe.probes) * probe.restarts * probe.epochs
