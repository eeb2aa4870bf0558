"""The scripts that containers start with: what they run, when they go on, and the one line with which they stop."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

START = Path(__file__).parents[3] / "deploy" / "compose" / "start"
PROMETHEUS = START.parents[1] / "prometheus" / "start.sh"
PROGRAMS = ("tln", "auditor", "splitwire", "prometheus")
FOLDERS = ("bundles", "truth", "runs", "audits", "audit_keys", "keys")
WAIT_SECONDS = 20


@dataclass(frozen=True)
class Box:
    """A folder with stand-ins for the programs, which write down how they were called."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        folders = {name.upper(): str(self.folder / name) for name in FOLDERS}
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "LOG": str(self.folder / "log"), **folders}

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [START / script, *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)

    def calls(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def box(tmp_path: Path) -> Box:
    for name in ("bin", *FOLDERS):
        (tmp_path / name).mkdir()
    for program in PROGRAMS:
        script = tmp_path / "bin" / program
        stay = "exec sleep 60\n" if program == "auditor" else ""
        script.write_text(f'#!/bin/sh\necho "{program} $*" >>"$LOG"\n[ "$1" != watch ] || {{ {stay}:; }}\n')
        script.chmod(0o755)
    return Box(tmp_path)


@pytest.mark.parametrize("script", sorted(START.iterdir()), ids=lambda path: path.name)
def test_a_script_can_be_run_and_parses(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


def test_a_run_begins_with_preparation_and_seals_into_a_folder_of_its_own(box: Box) -> None:
    assert box.run("train", "tln.toml").returncode == 0
    prepare, train = box.calls()
    assert prepare.startswith("tln prepare --config tln.toml")
    assert f"--out {box.folder}/runs/run" in train
    assert "--resume" not in train
    assert "--set record.wire=false" in train
    assert f"--record {box.folder / 'truth' / (box.folder / 'truth' / 'current').readlink()}" in train


def test_a_run_with_a_checkpoint_goes_on(box: Box) -> None:
    (box.folder / "runs" / "run").mkdir()
    (box.folder / "runs" / "run" / "checkpoint.safetensors").touch()
    assert box.run("train", "tln.toml").returncode == 0
    assert "--resume" in box.calls()[-1]


def test_a_run_that_has_ended_is_not_begun_again(box: Box) -> None:
    (box.folder / "runs" / "run").mkdir()
    (box.folder / "runs" / "run" / "report.json").touch()
    done = box.run("train", "tln.toml")
    assert (done.returncode, box.calls()) == (0, [])
    assert "Set RUN to another name" in done.stderr


@pytest.mark.parametrize("name", ["../other", "a b", ".hidden", "a/b"])
def test_a_name_of_a_run_that_leaves_its_volume_is_refused(box: Box, name: str) -> None:
    done = subprocess.run(
        [START / "train", "tln.toml"], env={**box.environment, "RUN": name}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, box.calls()) == (2, [])
    assert done.stderr.startswith(f"train: error: RUN is '{name}'. Set it to")
    assert not (box.folder / "truth" / "current").is_symlink()


@pytest.mark.parametrize(
    ("address", "is_taken"),
    [
        ("ucn:9431", True), ("192.0.2.1:9431", True), ("[2001:db8::1]:9431", True),
        ("", False), ("ucn", False), ("ucn:", False), ("ucn:port", False), ('u"]}]:1', False),
    ],
)  # fmt: skip
def test_prometheus_asks_for_an_address_that_it_can_use(box: Box, address: str, is_taken: bool) -> None:
    """With its folders put into the box."""
    text = PROMETHEUS.read_text().replace("/tmp/ucn.json", str(box.folder / "ucn.json"))  # noqa: S108 - in the image
    script = box.folder / "start.sh"
    script.write_text(text.replace("/data", str(box.folder / "audits")))
    environment = {**box.environment, "UCN_METRICS_ADDRESS": address}
    done = subprocess.run(["sh", script], env=environment, capture_output=True, text=True, check=False)
    if is_taken:
        assert done.returncode == 0, done.stderr
        assert json.loads((box.folder / "ucn.json").read_text()) == [{"targets": [address]}]
        assert box.calls()[0].startswith("prometheus --config.file=/etc/prometheus/prometheus.yml")
    else:
        assert (done.returncode, box.calls()) == (2, [])
        assert done.stderr == (
            f"prometheus: error: UCN_METRICS_ADDRESS is '{address}'. "
            "Set it to host:port of the untrusted node's metrics\n"
        )


def test_every_start_of_the_tap_records_into_a_new_folder(box: Box) -> None:
    assert box.run("tap", "--listen=x").returncode == 0
    name = (box.folder / "bundles" / "current").readlink()
    assert box.calls() == [f"auditor tap --out {box.folder / 'bundles' / name} --tls {box.folder / 'keys'} --listen=x"]


@pytest.mark.parametrize(("script", "volume"), [("tap", "bundles"), ("train", "truth")])
def test_a_volume_that_cannot_be_written_is_told_in_one_line(box: Box, script: str, volume: str) -> None:
    """A folder that is gone refuses root as well."""
    (box.folder / volume).rmdir()
    done = box.run(script, "tln.toml")
    assert (done.returncode, box.calls()) == (5, [])
    (line,) = done.stderr.splitlines()
    assert str(box.folder / volume) in line
    assert "Free space" in line


def test_the_watch_turns_to_a_newer_recording_and_to_a_truth_that_comes(box: Box) -> None:
    """It begins without a truth, and ends its watch on SIGTERM."""
    bundles, truths = box.folder / "bundles", box.folder / "truth"
    (box.folder / "audit_keys" / "audit.key").touch()
    process = subprocess.Popen([START / "watch"], env=box.environment)
    try:
        _point(bundles, "one")
        _until(lambda: box.calls() == [f"auditor watch {bundles / 'one'} --stay"])
        _point(truths, "first")
        (truths / "first" / "truth.sealed").touch()
        sealed = f"--truth {truths / 'first' / 'truth.sealed'} --key {box.folder / 'audit_keys' / 'audit.key'}"
        _until(lambda: box.calls()[1:] == [f"auditor watch {bundles / 'one'} {sealed} --stay"])
        _point(bundles, "two")
        _until(lambda: box.calls()[2:] == [f"auditor watch {bundles / 'two'} {sealed} --stay"])
    finally:
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_newest_result_is_the_one_that_is_shown(box: Box, code: int) -> None:
    """The verdict is the exit code, and every whole truth is given."""
    _point(box.folder / "bundles", "one")
    for name in ("first", "second"):
        (box.folder / "truth" / name).mkdir()
    (box.folder / "truth" / "first" / "truth.sealed").touch()
    writes = 'while [ "$1" != --out ]; do shift; done; mkdir "$2"; touch "$2/audit.json"'
    script = box.folder / "bin" / "auditor"
    script.write_text(f'#!/bin/sh\necho "auditor $*" >>"$LOG"\n{writes}\nexit {code}\n')
    assert box.run("audit", "--plan", "quick").returncode == code
    (call,) = box.calls()
    assert call.startswith(f"auditor audit {box.folder}/bundles/one --key {box.folder}/audit_keys/audit.key")
    assert call.endswith(f"--truth {box.folder}/truth/first/truth.sealed --plan quick")
    assert (box.folder / "audits" / "current" / "audit.json").exists()


def test_an_audit_without_a_result_leaves_the_last_one_shown(box: Box) -> None:
    _point(box.folder / "bundles", "one")
    _point(box.folder / "audits", "before")
    assert box.run("audit").returncode == 0
    assert (box.folder / "audits" / "current").readlink() == Path("before")


def test_an_audit_without_a_recording_says_so(box: Box) -> None:
    done = box.run("audit")
    assert (done.returncode, box.calls()) == (2, [])
    assert done.stderr == (
        f"audit: error: there is no recording {box.folder}/bundles/current. "
        "Start the tap, or set BUNDLE to the name of an older one\n"
    )


def test_a_watch_that_fails_ends_its_container(box: Box) -> None:
    """With its code, so that the restart policy and whoever looks at the container see it."""
    _point(box.folder / "bundles", "one")
    (box.folder / "bin" / "auditor").write_text("#!/bin/sh\necho 'auditor: error: no. do this' >&2\nexit 4\n")
    done = box.run("watch")
    assert (done.returncode, done.stderr) == (4, "auditor: error: no. do this\n")


@pytest.mark.parametrize("name", ["ucn", "tap", "tln"])
def test_health_is_asked_of_the_grpc_health_service(box: Box, name: str) -> None:
    assert box.run("healthy", name).returncode == 0
    (call,) = box.calls()
    assert call.startswith("splitwire health ")
    assert ("--insecure-loopback" in call) == (name == "ucn")


def _point(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / ".next").symlink_to(name)
    (folder / ".next").replace(folder / "current")


def _until(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.05)
