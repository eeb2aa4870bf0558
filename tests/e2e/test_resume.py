"""A training run whose processes are killed at any time ends with the very weights of one that nothing disturbed.

Real processes, SIGKILL, the tiny model on the CPU in fp32. Both runs start from one pair of checkpoints, because the
run key and the untrusted node's first weights come from the operating system.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitwire.settings import build
from tln.settings import TlnSettings
from tln.training.checkpoints import JOURNAL_FILE, KEY_FILE, STATE_FILE
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress
from tln.training.results_folder import REPORT_FILE, WEIGHTS_FILE

BIN = Path(sys.executable).parent
WAIT_SECONDS = 100
STEPS = 40
NUM_WIRE_STEPS = 3 * STEPS
"""Each training step takes a number for its frame, for the optimizer's step and for dropping gradients."""
FINAL = "final"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "SPLITWIRE_DEBUG": "1"}


@dataclass
class Setting:
    """One config file and how to run both nodes with it."""

    folder: Path
    address: str
    model: Path

    def trusted(self, out: Path, *options: str) -> subprocess.Popen[bytes]:
        config = self.folder / "tln.toml"
        command: list[str | Path] = [BIN / "tln", "train", "--config", config, "--out", out, *options]
        return self._start(command, "tln.log")

    @contextmanager
    def untrusted(self, checkpoints: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
        """A list of one process, so that who kills it can put another in its place."""
        running = [self.start_untrusted(checkpoints)]
        try:
            yield running
        finally:
            running[0].kill()
            running[0].wait(WAIT_SECONDS)

    def start_untrusted(self, checkpoints: Path) -> subprocess.Popen[bytes]:
        options = [f"listen={self.address}", "insecure_loopback=true", 'stacks=["gram"]', "threads=1"]
        options.append(f"checkpoint_dir={checkpoints}")
        pairs = [part for option in options for part in ("--set", option)]
        command: list[str | Path] = [BIN / "ucn", "serve", *pairs]
        return self._start(command, "ucn.log")

    def logs(self) -> str:
        return "\n".join((self.folder / name).read_text() for name in ("tln.log", "ucn.log"))

    def _start(self, command: list[str | Path], log: str) -> subprocess.Popen[bytes]:
        environment = ENVIRONMENT | {"SPLITWIRE_CACHE": str(self.folder / "cache")}
        with (self.folder / log).open("ab") as stream:
            return subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)


@pytest.fixture
def setting(tmp_path: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A prepared text and a config for the latent stack."""
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path / "cache"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    for name in ("private", "public"):
        (tmp_path / name).mkdir()
        for index in range(6):
            (tmp_path / name / f"{index}.txt").write_text(f"{name} text number {index} for a test of resuming. " * 2)
    tree: dict[str, dict[str, Any]] = {
        "model": {"source": str(tiny_model("llama")), "first_layer": 2, "last_layer": 4},
        "connection": {"address": address, "insecure_loopback": True, "connect_timeout_seconds": float(WAIT_SECONDS)},
        "stack": {"kind": "gram"},
        "frame": {
            "mechanisms": ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"],
            "bottleneck": {"width": 8},
            "decoys": {"count": 6, "pool_size": 60},
        },
        "gradient": {"clip_multiple": 2.0},
        "corpus": {"path": str(tmp_path / "private"), "public_path": str(tmp_path / "public"), "block_tokens": 8},
        "train": {
            "steps": STEPS,
            "frames_per_step": 3,
            "checkpoint_every": 3,
            "max_evaluation_blocks": 4,
            "remote_checkpoint": FINAL,
        },
    }
    (tmp_path / "tln.toml").write_text(
        "".join(
            f"{section}.{name} = {_toml(value)}\n" for section, values in tree.items() for name, value in values.items()
        )
    )
    settings = build(TlnSettings, tree, str(tmp_path))
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
    return Setting(tmp_path, address, Path(str(settings.model.source)))


@pytest.mark.timeout(600)
def test_killed_nodes_lose_no_step_and_take_none_twice(setting: Setting, tmp_path: Path) -> None:
    """Weights of both nodes and every loss are bit for bit those of the run that was left alone."""
    out, checkpoints = tmp_path / "out", tmp_path / "ucn"
    with setting.untrusted(checkpoints):
        _kill_when(setting, setting.trusted(out), (out / STATE_FILE).exists)
    for path in (out, checkpoints):
        shutil.copytree(path, path.with_name(f"{path.name}-alone"))
    assert (out / KEY_FILE).stat().st_mode & 0o777 == 0o600

    alone = tmp_path / "out-alone"
    with setting.untrusted(tmp_path / "ucn-alone"):
        assert setting.trusted(alone, "--resume").wait(WAIT_SECONDS) == 0, setting.logs()

    chosen = np.random.default_rng(7)
    with setting.untrusted(checkpoints) as node:
        for victim in ("tln", "ucn", "tln"):
            reached = _last_step(out) + int(chosen.integers(4, NUM_WIRE_STEPS // 5))
            trusted = setting.trusted(out, "--resume")
            if victim == "tln":
                _kill_when(setting, trusted, lambda: _last_step(out) >= reached)  # noqa: B023 - used at once
            else:
                _wait_until(setting, trusted, lambda: _last_step(out) >= reached)  # noqa: B023 - used at once
                node[0].kill()
                node[0].wait(WAIT_SECONDS)
                node[0] = setting.start_untrusted(checkpoints)
                assert trusted.wait(WAIT_SECONDS) == 1, setting.logs()
            assert not (out / REPORT_FILE).exists(), f"{victim} was to be killed before the end"
        assert setting.trusted(out, "--resume").wait(WAIT_SECONDS) == 0, setting.logs()

    assert (out / WEIGHTS_FILE).read_bytes() == (alone / WEIGHTS_FILE).read_bytes()
    assert _remote(checkpoints) == _remote(tmp_path / "ucn-alone")
    one, other = (json.loads((folder / REPORT_FILE).read_text()) for folder in (out, alone))
    assert len(one["loss_by_step"]) == STEPS
    for name in ("loss_by_step", "distillation_by_step", "cross_entropy_by_step", "utility", "ledger"):
        assert one[name] == other[name]
    assert sorted(path.name for path in out.iterdir()) == [REPORT_FILE, WEIGHTS_FILE]


def _remote(checkpoints: Path) -> bytes:
    """What the untrusted node trained; nothing else of the run is left there."""
    (file,) = checkpoints.glob("*/*")
    assert file.stem == FINAL
    return file.read_bytes()


def _last_step(out: Path) -> int:
    """The last step that was sent, as far as the journal tells; it is emptied at every checkpoint."""
    journal = out / JOURNAL_FILE
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return max((int(line.split()[0]) for line in lines), default=0)


def _kill_when(setting: Setting, process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    _wait_until(setting, process, happened)
    process.kill()
    assert process.wait(WAIT_SECONDS) == -signal.SIGKILL


def _wait_until(setting: Setting, process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert process.poll() is None, f"the run ended by itself\n{setting.logs()}"
        assert time.monotonic() < limit
        time.sleep(0.001)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    return json.dumps(value)
