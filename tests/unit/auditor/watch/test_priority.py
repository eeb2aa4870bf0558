"""The process that watches gets what others leave over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from auditor.watch.priority import yield_cores
yield_cores(sys.argv[1])
print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class")
@pytest.mark.parametrize(("priority", "printed"), [("idle", "True 0"), ("low", "False 10"), ("normal", "False 0")])
def test_the_share_of_the_cores(priority: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, priority], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed
