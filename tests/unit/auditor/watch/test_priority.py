"""The process that watches gets what others leave over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, sys
from auditor.watch.priority import yield_cores
yield_cores(sys.argv[1])
print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))
"""
_SHARE = Path("/proc/self/autogroup")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle class")
@pytest.mark.parametrize(("priority", "printed"), [("idle", "True 0"), ("low", "False 10"), ("normal", "False 0")])
def test_the_share_of_the_cores(priority: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, priority], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed


@pytest.mark.skipif(not _SHARE.exists(), reason="the system does not share cores by session")
@pytest.mark.parametrize(("alone", "ends"), [(True, "nice 19"), (False, "nice 0")])
def test_a_session_of_its_own_is_lowered_too_and_one_with_others_is_not(alone: bool, ends: str) -> None:
    """The second runs under a shell that leads the session."""
    program = f"{_PROGRAM}print(open({str(_SHARE)!r}).read())"
    command = [sys.executable, "-c", program, "idle"]
    if not alone:
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert done.stdout.strip().endswith(ends)
