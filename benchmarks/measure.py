"""How everything here is measured: the two sides of a ratio take turns within one run, and medians are compared.

Other load on the machine then falls on both. A row says what was compared with what, the ratio, the goal if there is
one, and the raw numbers behind the ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Row:
    """One result. `goal` reads like ">= 0.95"; `met` is None without a goal."""

    name: str
    against: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


def alternate(
    first: Callable[[], object], second: Callable[[], object], *, rounds: int, device: str = "cpu"
) -> tuple[list[float], list[float]]:
    """Seconds of each call, the two in turns; one call of each warms up. The order changes from round to round."""
    left, right = in_turns((first, second), rounds=rounds, device=device)
    return left, right


def in_turns(calls: Sequence[Callable[[], object]], *, rounds: int, device: str = "cpu") -> list[list[float]]:
    """Seconds of each call, as many of each; one call of each warms up. Every round begins with another one."""
    for call in calls:
        timed(call, device)
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for place in range(len(calls)):
            chosen = (number + place) % len(calls)
            seconds[chosen].append(timed(calls[chosen], device))
    return seconds


def timed(call: Callable[[], object], device: str = "cpu") -> float:
    """Seconds that the call takes, the work that it left on a GPU included."""
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - began


def ratio_of_medians(over: list[float], under: list[float]) -> float:
    """median(over) / median(under)."""
    return statistics.median(over) / statistics.median(under)


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
