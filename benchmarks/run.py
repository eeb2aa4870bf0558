"""`make bench`: all benchmarks in one run, as a table and as JSON. A ratio below its goal is shown, not hidden.

With --device cuda, or without it where CUDA is present, the same measurements run on the GPU as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from splitwire.console import prepare_process

prepare_process()  # before torch loads

import torch  # noqa: E402
import transformers  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks import battery, decode, floor, nodes, protected, serving, sessions, tap, training, watch, wire  # noqa: E402
from benchmarks.measure import Row  # noqa: E402
from splitwire import __version__  # noqa: E402
from splitwire.backbone import ModelSettings  # noqa: E402

console = Console()


def main() -> int:
    """Runs, prints and writes; the exit code is 0 whatever the ratios are."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N (default: cpu, and cuda where present)")
    parser.add_argument("--source", default=ModelSettings().source, help="model: embedded name, folder or hub id")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--first-layer", type=float, default=5 / 30, help="as a fraction of the depth")
    parser.add_argument("--last-layer", type=float, default=25 / 30, help="as a fraction of the depth")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, not how fast")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.json"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    devices = [arguments.device] if arguments.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    results = {}
    for device in devices:
        model = ModelSettings(
            source=arguments.source,
            first_layer=arguments.first_layer,
            last_layer=arguments.last_layer,
            dtype=arguments.dtype,
            device=device,
        )
        results[device] = list(_shown(device, _rows(model, quick=arguments.quick)))
        _table(device, results[device])
    arguments.out.write_text(json.dumps(_report(arguments, results), indent=2) + "\n")
    console.print(f"written: {arguments.out}")
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    """SIGTERM ends it like Ctrl-C does: every process that was started is stopped."""
    raise KeyboardInterrupt


def _rows(model: ModelSettings, *, quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="splitwire-bench-") as name:
        folder = Path(name)
        yield from wire.rows(folder, mebibytes=32 if quick else 256, rounds=2 if quick else 5)
        yield from tap.rows(folder / "tap", mebibytes=16 if quick else 128, rounds=2 if quick else 5)
        with nodes.running(folder, model) as started:
            yield from decode.rows(started, tokens=16 if quick else 96, rounds=1 if quick else 5)
            yield from floor.rows(started, tokens=16 if quick else 96, rounds=2 if quick else 6)
            yield from sessions.rows(started, steps=8 if quick else 32, rounds=1 if quick else 5)
            yield from serving.rows(started, tokens=8 if quick else 48, rounds=1 if quick else 3)
            yield from training.rows(started, sequences=8, positions=64, rounds=2 if quick else 10)
        yield from protected.rows(folder / "protected", model, rounds=2 if quick else 12)
        yield from watch.rows(folder / "watch", model, rounds=4 if quick else 24, mebibytes=16 if quick else 128)
        yield from battery.rows(num_rows=8192 if quick else 65_536, rounds=2, device=model.device)


def _shown(device: str, rows: Iterator[Row]) -> Iterator[Row]:
    with console.status(f"measuring on {device}") as status:
        for row in rows:
            status.update(f"measuring on {device}: {row.name} {row.value:.3f} {row.unit}")
            yield row


def _table(device: str, rows: list[Row]) -> None:
    table = Table(title=f"splitwire {__version__} on {device}", title_justify="left")
    for column in ("what", "against", "value", "goal", "numbers"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for row in rows:
        goal = f"{row.goal} {'met' if row.met else 'MISSED'}" if row.goal else ""
        numbers = "  ".join(f"{key} {value:.4g}" for key, value in row.numbers.items())
        table.add_row(row.name, row.against, f"{row.value:.3f} {row.unit}", goal, numbers)
    console.print(table)


def _report(arguments: argparse.Namespace, results: dict[str, list[Row]]) -> dict[str, object]:
    return {
        "schema": "splitwire.benchmarks/1",
        "versions": {"splitwire": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "machine": {
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processor": platform.machine(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "model": {key: vars(arguments)[key] for key in ("source", "dtype", "first_layer", "last_layer")},
        "quick": arguments.quick,
        "results": {device: [dataclasses.asdict(row) for row in rows] for device, rows in results.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
