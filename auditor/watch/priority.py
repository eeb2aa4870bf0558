"""Leaves the cores to others: a watch must not slow the training that it watches."""

from __future__ import annotations

import os
from typing import Literal

Priority = Literal["idle", "low", "normal"]

_LOW, _LOWEST = 10, 19


def yield_cores(priority: Priority) -> None:
    """Lowers this thread and those that it will start. Where the system has no idle class, idle is the lowest share."""
    if priority == "normal":
        return
    if priority == "idle" and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_LOW if priority == "low" else _LOWEST)
