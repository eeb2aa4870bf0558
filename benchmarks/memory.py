"""Peak memory of an audit against the size of what it audits.

    python -m benchmarks.memory [--mebibytes 256 1024] [--view-mebibytes 512] [--attacks row_norm,latent_probe]

Makes a synthetic run of gram frames (80 rows of width 64, 32 of them real, clipped and noised gradients) for each size
of a bundle, and audits it in a process of its own: every attack of the default plan with small budgets (one epoch, one
arm of the latent probe, 64 classes, 200 repetitions), on which memory does not depend. Prints peak resident memory, and
the part of it that is anonymous, which the system cannot take back; with several sizes also what each further MiB of
bundle takes, and what that makes of 8 GiB.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from splitwire.console import prepare_process

prepare_process()  # before torch loads

import numpy as np  # noqa: E402
import torch  # noqa: E402

from auditor.audit import run_audit  # noqa: E402
from auditor.plan import Plan  # noqa: E402
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest  # noqa: E402
from splitwire.frames import encode_frame  # noqa: E402
from splitwire.sealing import write_audit_keys  # noqa: E402
from splitwire.v1 import channels_pb2, stack_pb2  # noqa: E402

_PLAN = Plan()
_LARGE_MEBIBYTES = 8192
_SESSION = "0123456789abcdef"
_FRAMES, _ROWS, _REAL, _WIDTH = 16, 80, 32, 64
_DOCUMENTS, _VOCABULARY = 400, 512
_HOPS = (
    (channels_pb2.HOP_FORWARD, "request"),
    (channels_pb2.HOP_RETURN, "response"),
    (channels_pb2.HOP_BACKWARD, "request"),
    (channels_pb2.HOP_INPUT_GRADIENT, "response"),
)
_STEP_BYTES = len(_HOPS) * _FRAMES * _ROWS * _WIDTH * 4
_POLL_SECONDS = 0.2


def main() -> int:
    """Prints a line a size, and one for what they say of a large bundle."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--mebibytes", type=int, nargs="+", default=[256, 1024], help="sizes of the bundle")
    parser.add_argument("--view-mebibytes", type=int, default=_PLAN.probe.max_view_bytes >> 20, help="of the plan")
    parser.add_argument("--attacks", default=",".join(_PLAN.attacks), help="attacks of the plan")
    parser.add_argument("--audit", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    if arguments.audit is not None:
        _audit(arguments.audit, tuple(arguments.attacks.split(",")), arguments.view_mebibytes << 20)
        return 0
    passed = ["--view-mebibytes", str(arguments.view_mebibytes), "--attacks", arguments.attacks]
    found = [_measure(mebibytes, passed) for mebibytes in sorted(arguments.mebibytes)]
    (small, low), (large, high) = found[0], found[-1]
    if large > small:
        slope = (high - low) / (large - small)
        print(
            f"each further MiB of bundle takes {slope:.2f} MiB: {_LARGE_MEBIBYTES} MiB take "
            f"{high + slope * (_LARGE_MEBIBYTES - large):.0f} MiB",
            flush=True,
        )
    return 0


def _measure(mebibytes: int, arguments: list[str]) -> tuple[float, float]:
    """Size of a bundle and peak resident memory of its audit, in MiB."""
    with tempfile.TemporaryDirectory(prefix="splitwire-memory-") as name:
        steps = max(1, mebibytes * 2**20 // _STEP_BYTES)
        write_run(Path(name), steps)
        size = (Path(name) / "bundle" / "wire.mcap").stat().st_size / 2**20
        began = time.perf_counter()
        peak, anonymous = _peaks([sys.executable, "-m", "benchmarks.memory", "--audit", name, *arguments])
        print(
            f"bundle {size:.0f} MiB, {steps * _FRAMES * _ROWS} rows: peak resident {peak:.0f} MiB, of which "
            f"anonymous at most {anonymous:.0f} MiB; {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return size, peak


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def write_run(folder: Path, steps: int) -> None:
    """A bundle and its truth, and the keys that open it."""
    write_audit_keys(folder / "keys")
    generator = np.random.default_rng(1)
    writer = BundleWriter(folder / "bundle", recorder="tln", settings={})
    message = stack_pb2.OpenSessionRequest(protocol_version=1, stack_kind=stack_pb2.STACK_KIND_GRAM).SerializeToString()
    writer.write(WireRecord(channels_pb2.HOP_CONTROL, "request", _SESSION, message, 0, 0, "OpenSessionRequest"))
    with TruthWriter(folder / "bundle" / "truth.sealed", folder / "keys" / "audit.pub") as truth:
        truth.add_documents([{"id": f"document {number}", "member": True} for number in range(_DOCUMENTS)])
        for step in range(1, steps + 1):
            truth.add(_step(writer, step, generator))
    writer.close()


def _step(writer: BundleWriter, step: int, generator: np.random.Generator) -> TruthRecord:
    shape = (_FRAMES, _ROWS)
    real = generator.random(shape).argsort(1) < _REAL
    labels = (generator.zipf(1.3, shape) % _VOCABULARY).astype(np.int32)
    own = ((step * _FRAMES + np.arange(_FRAMES)) % _DOCUMENTS).astype(np.int32)
    document = np.where(real, own[:, None], generator.integers(0, _DOCUMENTS, shape)).astype(np.int32)
    digest = ""
    for hop, direction in _HOPS:
        rows = generator.standard_normal((*shape, _WIDTH), dtype=np.float32)
        header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
        if hop == channels_pb2.HOP_FORWARD:
            header.compute_mode = stack_pb2.COMPUTE_MODE_TRAIN
        kind = "ExchangeRequest" if direction == "request" else "ExchangeResponse"
        messages = list(encode_frame(header, torch.from_numpy(rows)))
        for message in messages:
            writer.write(WireRecord(hop, direction, _SESSION, message, step, step, kind))  # type: ignore[arg-type]
        digest = digest or frame_digest(messages)
    order = np.zeros(shape, np.int32)
    return TruthRecord(_SESSION, step, digest, "train", real, order, labels, labels, document)


def _audit(folder: Path, attacks: tuple[str, ...], view_bytes: int) -> None:
    probe = replace(
        _PLAN.probe,
        probes=("coordinate_plus_invariants",),
        restarts=1,
        epochs=1,
        max_classes=64,
        max_view_bytes=view_bytes,
    )
    statistics = replace(_PLAN.statistics, repetitions=200)
    plan = replace(_PLAN, name="memory", attacks=attacks, probe=probe, statistics=statistics)
    run_audit([folder / "bundle"], key=folder / "keys" / "audit.key", plan=plan)


def _peaks(command: list[str]) -> tuple[float, float]:
    """Peak resident and peak anonymous memory in MiB of a process."""
    highest = [0.0, 0.0]
    with subprocess.Popen(command) as process:
        try:
            while process.poll() is None:
                for place, field in enumerate(("VmHWM:", "RssAnon:")):
                    highest[place] = max(highest[place], _status(process.pid, field))
                time.sleep(_POLL_SECONDS)
        finally:
            process.terminate()
    if process.returncode:
        raise SystemExit(f"the audit ended with code {process.returncode}")
    return highest[0], highest[1]


def _status(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


if __name__ == "__main__":
    sys.exit(main())
