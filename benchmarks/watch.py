"""What `auditor watch` costs a training run, and by how much it is faster than that run.

A protected step of the gram stack goes through the tap, which records it; the trusted node records its truth, so every
detector of the watch works. Cost: steps with the watch at work and with it held (SIGSTOP), in turns within one run.
What was recorded meanwhile is read on top when the watch goes on: it works twice as hard as a run would make it.

Keeping up: the same recording is read once more by a watch alone, on one thread, all detectors on. The ratio is its
steps a second over those of the training run. The last ratio is harder than any training: the bytes a second that it
reads over those that the tap writes at most, before an echo that computes nothing.
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from auditor.watch import Watcher, WatchSettings
from benchmarks import tap
from benchmarks.measure import Row, in_turns, ratio_of_medians, timed
from benchmarks.nodes import Nodes, running_gram
from benchmarks.protected import FRAME_ROWS, FRAMES, LOSSES, MECHANISMS, batch_for, gram_settings, training_step
from deploy.demo.processes import Processes, free_port
from splitwire.backbone import ModelSettings
from splitwire.sealing import write_audit_keys
from tln.connect import Connected, connect
from tln.gradient_policy import GradientSettings, build_gradient_policy
from tln.recording import RecordSettings

_LOSS = "protected step"


def rows(folder: Path, model: ModelSettings, *, rounds: int, mebibytes: int) -> Iterator[Row]:
    """The cost of a step with the watch running, how much faster the watch is than the run, and than the tap can be.

    The tap is measured with so many MiB a round.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_audit_keys(folder / "keys")
    settings = WatchSettings(
        bundle=folder / "bundle", truth=folder / "truth" / "truth.sealed", key=folder / "keys" / "audit.key"
    )
    with running_gram(folder, model) as nodes, _tapped(folder, nodes) as tapped, _training(folder, tapped) as connected:
        step = training_step(connected, LOSSES[_LOSS])
        with _watching(folder, settings) as watching:
            calls = [_with(watching, signal.SIGCONT, step), _with(watching, signal.SIGSTOP, step)]
            watched, alone = in_turns(calls, rounds=rounds, device=model.device)
    yield Row(
        "training step while watched",
        "the same step, watch held",
        ratio_of_medians(watched, alone),
        "ratio",
        numbers={"watched_step_ms": 1e3 * statistics.median(watched), "alone_step_ms": 1e3 * statistics.median(alone)},
    )
    speed = _keeping_up(settings, statistics.median(alone))
    yield speed
    yield _against_the_tap(
        speed.numbers["mebibytes_per_second"], tap.write_rate(folder / "tap", mebibytes=mebibytes, rounds=3)
    )


def _keeping_up(settings: WatchSettings, step_seconds: float) -> Row:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    watcher = Watcher(settings)
    seconds = timed(lambda: watcher.run(stopped=lambda: False, show=lambda _state: None))
    torch.set_num_threads(threads)
    state = watcher.state()
    watch_seconds = seconds / state.num_frames["FORWARD"]
    value = step_seconds / watch_seconds
    numbers = {
        "watch_step_ms": 1e3 * watch_seconds,
        "rows_per_second": state.num_frames["FORWARD"] * FRAMES * FRAME_ROWS / seconds,
        "mebibytes_per_second": state.num_bytes / 2**20 / seconds,
        "skipped_frames": float(state.num_skipped),
    }
    return Row("speed of the watch", "the training run", value, "times", ">= 2", value >= 2, numbers)


def _against_the_tap(read: float, written: float) -> Row:
    numbers = {"read_mebibytes_per_second": read, "written_mebibytes_per_second": written}
    return Row("read rate of the watch", "the tap's largest write rate", read / written, "ratio", numbers=numbers)


@contextmanager
def _tapped(folder: Path, nodes: Nodes) -> Iterator[Nodes]:
    """The nodes as seen through a tap that records."""
    port = free_port()
    addresses = ["--listen", f"127.0.0.1:{port}", "--upstream", f"127.0.0.1:{nodes.ucn_port}"]
    command = ["auditor", "tap", *addresses, "--tls", str(folder / "pki" / "tap"), "--out", str(folder / "bundle")]
    with Processes(folder) as processes:
        processes.start("tap", command, port)
        yield replace(nodes, ucn_port=port)


@contextmanager
def _training(folder: Path, nodes: Nodes) -> Iterator[Connected]:
    """A protected session that records its truth, its decoy pool full."""
    record = RecordSettings(folder=str(folder / "truth"), wire=False, audit_key=str(folder / "keys" / "audit.pub"))
    settings = replace(gram_settings(nodes, MECHANISMS), record=record)
    documents = [{"id": f"document {number}", "member": True} for number in range(FRAMES)]
    policy = GradientSettings()
    with connect(
        settings,
        mode="training",
        make_policy=lambda parts: build_gradient_policy(policy, parts.keys),
        documents=documents,
    ) as connected:
        batch = batch_for(connected)
        while not connected.model.pipeline.is_ready:
            connected.model.pipeline.prime(batch.hidden, batch.context(0))
        yield connected


@contextmanager
def _watching(folder: Path, settings: WatchSettings) -> Iterator[int]:
    """A watch beside the run, ready; its process id."""
    port = free_port()
    command = ["auditor", "watch", str(settings.bundle), "--truth", str(settings.truth), "--key", str(settings.key)]
    with Processes(folder) as processes:
        pid = processes.start("watch", [*command, "--metrics-listen", f"127.0.0.1:{port}"], port)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)


def _with(pid: int, state: signal.Signals, step: Callable[[], object]) -> Callable[[], object]:
    """The step while the watch is in that state."""

    def call() -> None:
        os.kill(pid, state)
        step()

    return call
