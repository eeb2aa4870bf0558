"""Programs that the demo, the benchmarks and the reproduction start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, sys
from pathlib import Path
from deploy.demo.processes import Processes, run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_while_a_program_is_started_is_not_lost(tmp_path: Path) -> None:
    """A signal that comes in the middle of a fork, where Python prints exceptions of hooks and goes on."""
    for call in (
        'run(["python", "-c", "import time; time.sleep(60)"])',
        'Processes(Path(sys.argv[1])).start("sleeper", ["python", "-c", "import time; time.sleep(60)"], 1)',
    ):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(call=call), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.stdout == "interrupted\n", done.stderr
