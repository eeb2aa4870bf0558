"""Leaves the cores to others: a watch must not slow the training that it watches."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

Priority = Literal["idle", "low", "normal"]

_LOW, _LOWEST = 10, 19
_SESSION_SHARE = Path("/proc/self/autogroup")


def yield_cores(priority: Priority) -> None:
    """Lowers this thread and those that it will start. Where the system has no idle class, idle is the lowest share.

    Linux shares cores among login sessions before it looks at a process, so the class says nothing to a training of
    another session. A watch that leads a session of its own (a service, a container, `setsid`) lowers that as well;
    one that shares its session with others, as in a terminal, leaves theirs alone.
    """
    if priority == "normal":
        return
    if priority == "idle" and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        if os.getsid(0) == os.getpid():
            with contextlib.suppress(OSError):
                _SESSION_SHARE.write_text(str(_LOWEST))
    else:
        os.nice(_LOW if priority == "low" else _LOWEST)
