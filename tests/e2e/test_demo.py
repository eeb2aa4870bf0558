"""The demonstration, short: the story holds, and interrupting it leaves no process behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.demo", "--out", out, "--documents", "40", "--steps", "6"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def mentions(folder: Path) -> list[psutil.Process]:
    """Processes that have the folder on their command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ())
    ]


def test_the_story_holds(smollm2: Path, tmp_path: Path) -> None:
    """Open: support exact on every frame, FAIL. Clipped and noised: on none. Then an answer; all processes are gone."""
    out = tmp_path / "demo"
    process = start(out)
    printed, _ = process.communicate(timeout=580)
    assert process.returncode == 0, printed[-3000:]
    checks = {}
    for part in ("open", "clipped"):
        audit = json.loads((out / f"audit-{part}" / "audit.json").read_text())
        checks[part] = {check["metric"]: (result, check) for result in audit["results"] for check in result["checks"]}
        assert (out / f"audit-{part}" / "audit.html").stat().st_size > 10_000
        if part == "open":
            assert audit["verdict"]["state"] == "fail"
    result, check = checks["open"]["exact_support_frames"]
    assert check["value"] == result["num_frames"] == 6 * 16
    assert checks["clipped"]["exact_support_frames"][1]["value"] == 0
    assert (out / "answer.txt").read_text().strip()
    assert str(out / "audit-open" / "audit.html") in printed.replace("\n", "")
    assert mentions(out) == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What this test starts can be interrupted, also where the tests themselves run as a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_no_process(smollm2: Path, tmp_path: Path) -> None:
    """SIGINT while the untrusted node serves and the tap records."""
    out = tmp_path / "demo"
    with start(out) as process:
        deadline = time.monotonic() + 300
        while not (out / "tap-open.log").exists():
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=90)
    assert process.returncode == 130, printed[-3000:]
    assert mentions(out) == []
