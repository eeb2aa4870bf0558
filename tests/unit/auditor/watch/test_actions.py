"""A leak starts a program once, without a shell and without content, and asks the named processes to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from auditor.watch import Watcher
from auditor.watch.actions import Actions
from auditor.watch.base import Reading
from auditor.watch.settings import ActionSettings

from .conftest import Growing, catch_up

_TELL = "import json, os, sys; open(sys.argv[1], 'a').write(json.dumps([sys.argv[2:], dict(os.environ)]) + chr(10))"
_OURS = {"SPLITWIRE_LEAK_DETECTOR", "SPLITWIRE_LEAK_VALUE", "SPLITWIRE_LEAK_BUNDLE", "PATH"}
_FROM_PYTHON = {"LC_CTYPE"}


def _leak(detector: str = "support") -> Reading:
    return Reading(detector, "", 0.75, None, 0.0, "ratio", 1, leak="found")


def test_a_leak_runs_the_program_once_a_detector_with_its_name_value_and_bundle(
    record: Callable[..., Growing], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    out = tmp_path / "told"
    recording = record(gradient="open")
    command = (sys.executable, "-c", _TELL, str(out), "$(id)", "; ls")
    watcher = watch(recording, with_truth=False, actions=ActionSettings(on_leak=command))
    for _ in range(3):
        recording.steps(2)
        catch_up(watcher)
    recording.close()
    watcher.run(stopped=lambda: False, show=lambda _state: None)
    (told,) = out.read_text().splitlines()
    arguments, environment = __import__("json").loads(told)
    assert arguments == ["$(id)", "; ls"]
    assert set(environment) - _FROM_PYTHON == _OURS
    assert environment["SPLITWIRE_LEAK_DETECTOR"] == "support"
    assert float(environment["SPLITWIRE_LEAK_VALUE"]) >= 1
    assert environment["SPLITWIRE_LEAK_BUNDLE"] == str(recording.folder)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ((sys.executable, "-c", "raise SystemExit(7)"), "ended with code 7"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "took longer than 0.3 s"),
        (("/nowhere/at-all",), "cannot be started: No such file"),
    ],
)
def test_a_program_that_fails_is_told_and_does_not_end_the_watch(
    record: Callable[..., Growing], watch: Callable[..., Watcher], command: tuple[str, ...], named: str
) -> None:
    lines: list[str] = []
    recording = record(gradient="open")
    recording.steps(2)
    recording.close()
    actions = ActionSettings(on_leak=command, timeout_seconds=0.3 if "sleep" in command[-1] else 20)
    watcher = watch(recording, with_truth=False, lines=lines, actions=actions)
    watcher.run(stopped=lambda: False, show=lambda _state: None)
    assert watcher.found_leak
    assert any(named in line for line in lines), lines
    assert b"auditor_watch_action_failures_total 1.0" in generate_latest(watcher.metrics.registry)


_STUBBORN = "import signal, time; signal.signal(15, lambda *_: print('first', flush=True)); print('up', flush=True)"


def _start(program: str) -> Any:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_a_process_is_asked_to_stop_and_asked_again_when_it_does_not() -> None:
    willing = _start("import time; print('up', flush=True); time.sleep(60)")
    stubborn = _start(_STUBBORN + "; [time.sleep(0.2) for _ in range(300)]")
    lines: list[str] = []
    settings = ActionSettings(stop_pids=(willing.pid, stubborn.pid), stop_again_seconds=0.2)
    actions = Actions(settings, Path("bundle"), lambda line, _failed: lines.append(line))
    try:
        actions.act(_leak())
        assert willing.wait(20) == -signal.SIGTERM
        assert stubborn.stdout.readline() == "first\n"
        actions.act(_leak("linkage"))
        actions.finish()
        assert stubborn.stdout.readline() == "first\n"
        asked = [line for line in lines if "was asked to stop" in line]
        assert len(asked) == 3
    finally:
        for process in (willing, stubborn):
            process.kill()
            process.communicate()


def test_a_process_that_has_ended_is_left_alone() -> None:
    process = _start("print('up', flush=True)")
    lines: list[str] = []
    actions = Actions(ActionSettings(stop_pids=(process.pid,)), Path("b"), lambda line, _failed: lines.append(line))
    process.communicate()
    actions.act(_leak())
    began = time.monotonic()
    actions.finish()
    assert time.monotonic() - began < 5
    assert not any("asked to stop" in line for line in lines)
