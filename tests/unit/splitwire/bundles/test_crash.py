"""A killed writer and a full disk, with real processes: what was written stays readable and never looks complete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from splitwire.bundles import open_bundle, read_truth, verify_bundle
from splitwire.sealing import load_sealing_private_key

_PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np
from splitwire.bundles import BundleWriter, Recorder, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.errors import RecordingError

folder, public_key, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
writer = BundleWriter(folder, recorder="tln", settings={"run": 1})
truth = TruthWriter(folder / "truth.sealed", public_key)
recorder = Recorder(writer)
zeros = np.zeros((1, 4), np.int32)
for step in range(1, 1_000_000):
    message = step.to_bytes(4, "little") * 2048
    truth.add(TruthRecord("a" * 16, step, frame_digest([message]), "train", zeros == 0, zeros, zeros, zeros, zeros))
    recorder.offer(WireRecord(1, "request", "a" * 16, message, step, step, "ExchangeRequest"))
    if limit and step == 2000:
        try:
            recorder.close()
        except RecordingError as error:
            print(error, flush=True)
            sys.exit(error.exit_code)
    if step % 1000 == 0:
        print(step, flush=True)
"""


def start(folder: Path, keys: Path, limit: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder), str(keys / "audit.pub"), str(limit)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_writer_killed_while_writing_leaves_a_readable_incomplete_bundle(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "bundle"
    with start(folder, keys) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1000\n"
        os.kill(process.pid, signal.SIGKILL)
    bundle = open_bundle(folder)
    found = [message.message for message in bundle.messages()]
    assert len(found) > 100
    assert found == [step.to_bytes(4, "little") * 2048 for step in range(1, len(found) + 1)]
    assert bundle.settings == {"run": 1}
    assert not bundle.is_complete
    report = verify_bundle(folder)
    assert not report.is_complete
    assert "manifest.json is missing" in report.problems[0]
    assert report.counts["FORWARD"].messages == len(found)


def test_truth_of_a_killed_writer_reads_up_to_its_last_record(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "bundle"
    with start(folder, keys) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1000\n"
        os.kill(process.pid, signal.SIGKILL)
    truth = read_truth(folder / "truth.sealed", load_sealing_private_key(keys / "audit.key"))
    assert not truth.is_complete
    assert len(truth.records) >= 1000
    assert truth.records["a" * 16, 1000].real.all()


def test_a_full_disk_ends_in_a_recording_error_and_an_incomplete_bundle(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "bundle"
    with start(folder, keys, limit=5 << 20) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "cannot be written: File too large. free space" in output
    bundle = open_bundle(folder)
    assert bundle.manifest is None
    assert len(list(bundle.messages())) > 500
