"""What is done about a leak: a program is started, once a detector, and processes are asked to stop.

The program gets no shell and no content: its arguments are those of the settings, and its environment holds PATH and
SPLITWIRE_LEAK_DETECTOR, SPLITWIRE_LEAK_VALUE and SPLITWIRE_LEAK_BUNDLE. It runs beside the watch; that it failed, or
took too long and was ended, is told and counted. Processes are sent SIGTERM, and once more after a while, which ends
splitwire's programs at once. A process that ended meanwhile is left alone, and so is another one under its number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from auditor.watch.base import Reading
from auditor.watch.settings import ActionSettings

Report = Callable[[str, bool], None]
"""Called with a line, and whether it tells of a failure."""
_POLL_SECONDS = 0.05
_STARTED_FIELD = 19  # of /proc/PID/stat, counted behind the name


@dataclass
class _Running:
    detector: str
    process: subprocess.Popen[bytes]
    deadline: float


@dataclass
class _Target:
    pid: int
    started: str
    asked: int = 0


class Actions:
    """Acts on readings that found a leak; `poll` keeps what was started in view."""

    def __init__(self, settings: ActionSettings, bundle: Path, report: Report) -> None:
        self._settings = settings
        self._bundle = bundle
        self._report = report
        self._acted: set[str] = set()
        self._running: list[_Running] = []
        self._targets = [_Target(pid, _started(pid)) for pid in settings.stop_pids]
        self._stop_again_at: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a program still runs, or a process was asked to stop and has not."""
        return bool(self._running) or (self._stop_again_at is not None and any(map(_lives, self._targets)))

    def act(self, reading: Reading) -> None:
        """Does what the settings say about this leak; nothing where it was done before."""
        if not reading.leak or reading.detector in self._acted:
            return
        self._acted.add(reading.detector)
        self._report(f"LEAK {reading.detector}: {reading.leak}", False)
        if self._settings.on_leak:
            self._start(reading)
        if self._targets and self._stop_again_at is None:
            self._stop()

    def poll(self) -> None:
        """Ends what takes too long, tells of what failed, and asks again."""
        for running in list(self._running):
            code = running.process.poll()
            if code is None and time.monotonic() > running.deadline:
                running.process.kill()
                running.process.wait()
                self._running.remove(running)
                self._failed(f"took longer than {self._settings.timeout_seconds:g} s and was ended", running.detector)
            elif code is not None:
                self._running.remove(running)
                if code:
                    self._failed(f"ended with code {code}", running.detector)
        if self._stop_again_at is not None and time.monotonic() >= self._stop_again_at:
            for target in self._targets:
                self._ask(target, times=2)

    def finish(self) -> None:
        """Waits for programs within their time, and for processes until they were asked twice."""
        while self.is_busy:
            self.poll()
            if not self._running and all(target.asked > 1 or not _lives(target) for target in self._targets):
                return
            time.sleep(_POLL_SECONDS)

    def _start(self, reading: Reading) -> None:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "SPLITWIRE_LEAK_DETECTOR": reading.detector,
            "SPLITWIRE_LEAK_VALUE": "" if reading.value is None else f"{reading.value:.6g}",
            "SPLITWIRE_LEAK_BUNDLE": str(self._bundle.resolve()),
        }
        try:
            process = subprocess.Popen(  # noqa: S603 - the argument vector of the settings; no shell
                self._settings.on_leak, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        except OSError as error:
            self._failed(f"cannot be started: {error.strerror}", reading.detector)
            return
        self._running.append(_Running(reading.detector, process, time.monotonic() + self._settings.timeout_seconds))

    def _stop(self) -> None:
        self._stop_again_at = time.monotonic() + self._settings.stop_again_seconds
        for target in self._targets:
            self._ask(target, times=1)

    def _ask(self, target: _Target, *, times: int) -> None:
        if target.asked >= times or not _lives(target):
            return
        target.asked = times
        try:
            os.kill(target.pid, signal.SIGTERM)
        except OSError as error:
            self._report(f"process {target.pid} cannot be stopped: {error.strerror}", True)
            return
        self._report(f"process {target.pid} was asked to stop", False)

    def _failed(self, what: str, detector: str) -> None:
        self._report(f"on_leak for {detector}: {self._settings.on_leak[0]} {what}", True)


def _started(pid: int) -> str:
    """When the process started, in clock ticks; empty where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[_STARTED_FIELD]


def _lives(target: _Target) -> bool:
    return bool(target.started) and _started(target.pid) == target.started
