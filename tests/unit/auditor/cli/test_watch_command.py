"""watch, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_watch_that_saw_no_frame_says_so_and_is_no_success(tmp_path: Path) -> None:
    """A recording that never began was not found free of leaks."""
    program = "import sys; from auditor.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "watch", str(tmp_path / "none"), "--idle", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"no frame came to {tmp_path / 'none'}" in done.stderr
