"""The whole story on one machine, with real processes, a real model and real text. `make demo` runs it.

    trusted node  <--mutual TLS-->  tap (records)  <--mutual TLS-->  untrusted node

1. Fine-tuning with the gradient open, as published: the audit of the recording finds the decoys from zeros alone.
2. The same with the gradient clipped and noised: the zeros are gone; what a row-norm classifier still reads is shown.
3. A prompt answered by the split model through the same kind of tap.

Everything goes to a fresh folder, .demo by default. Exit code 0 means that the story held: the first audit failed on
exact support, the second did not find it, and the prompt was answered. Ctrl-C leaves no process behind.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from auditor.report.numbers import show_interval, show_value
from auditor.words import DASH, SHORT_FAMILIES
from deploy.demo.processes import Processes, ProcessFailedError, free_port, run
from deploy.demo.story import PARTS, Part, Story

PROMPT = "In one sentence, why should a doctor not paste patient notes into a chat window?"
_AUDIT_EXIT_CODES = (0, 1, 3)
_INTERRUPTED = 130
_STATES = {"pass": "[green]pass[/]", "fail": "[bold red]FAIL[/]", "inconclusive": "[yellow]inconclusive[/]"}

console = Console(stderr=True)


def main() -> int:
    """Parses the command line and tells the story; the exit code says whether it held."""
    parser = argparse.ArgumentParser(
        prog="make demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="folder, made anew (default: .demo)")
    parser.add_argument("--steps", type=int, default=64, help="training steps of each run (default: 64)")
    parser.add_argument("--documents", type=int, default=150, help="private documents used (default: 150)")
    arguments = parser.parse_args()
    began = time.monotonic()
    root = arguments.out.resolve()
    if root.exists() and not (root / "DEMO").exists():
        console.print(f"[red]{root} exists and is not a demonstration's folder; choose another --out[/]")
        return 2
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    (root / "DEMO").write_text("Made by make demo; removed when it runs again.\n")
    story = Story(root, arguments.steps, arguments.documents, free_port(), free_port())
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _tell(story, began)
    except ProcessFailedError as failure:
        console.print(f"[bold red]{failure}[/]")
        return 1
    except KeyboardInterrupt:
        console.print("[bold]interrupted; every process is stopped[/]")
        return _INTERRUPTED


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _tell(story: Story, began: float) -> int:
    _title("Keys: a certificate authority, three certificates, the auditor's sealing and signing keys")
    run(["splitwire", "pki", "init", str(story.pki), "--loopback"], quiet=True)
    run(["auditor", "keygen", str(story.keys)], quiet=True)
    _title("Prepare: the whole model runs once, for the distillation target and the baseline")
    run(story.tln("prepare", *story.training()))
    audits: dict[str, dict[str, Any]] = {}
    with Processes(story.root) as processes:
        processes.start("ucn", story.ucn(), story.ucn_port)
        for part in PARTS:
            audits[part.name] = _train_and_audit(story, processes, part)
        answer = _answer(story, processes)
        processes.stop("ucn")
    return _summary(story, audits, answer, time.monotonic() - began)


def _train_and_audit(story: Story, processes: Processes, part: Part) -> dict[str, Any]:
    _title(f"Fine-tune with {part.title}; the tap records every byte")
    bundle, truth = story.root / f"bundle-{part.name}", story.root / f"truth-{part.name}"
    with processes.running(f"tap-{part.name}", story.tap(bundle), story.tap_port):
        run(
            story.tln(
                "train",
                *story.training(),
                *part.gradient,
                f"train.out={story.root / f'run-{part.name}'}",
                f"record.folder={truth}",
                "record.wire=false",
                f"record.audit_key={story.keys / 'audit.pub'}",
            )
        )
    _title(f"Audit what the tap recorded with {part.title}")
    report = story.root / f"audit-{part.name}"
    run(
        [
            "auditor",
            "audit",
            str(bundle),
            "--key",
            str(story.keys / "audit.key"),
            "--truth",
            str(truth / "truth.sealed"),
            "--trust",
            str(story.keys / "trust.json"),
            "--plan",
            "quick",
            "--out",
            str(report),
        ],
        accepted=_AUDIT_EXIT_CODES,
    )
    audit: dict[str, Any] = json.loads((report / "audit.json").read_text())
    return audit


def _answer(story: Story, processes: Processes) -> str:
    _title("Inference: the split model answers a prompt through the tap, without defence")
    answer = story.root / "answer.txt"
    with processes.running("tap-answer", story.tap(story.root / "bundle-answer"), story.tap_port):
        arguments = story.tln("generate", config="generate.toml")
        run([*arguments, "--chat", "--prompt", PROMPT, "--max-new-tokens", "64"], output=answer)
    return answer.read_text().strip()


def _summary(story: Story, audits: dict[str, dict[str, Any]], answer: str, seconds: float) -> int:
    table = Table(title="What the untrusted node could read", title_justify="left")
    for column in ("", *(part.title for part in PARTS)):
        table.add_column(column, overflow="fold")
    checks = {name: _checks(audit) for name, audit in audits.items()}
    rows = dict.fromkeys(key for part in PARTS for key in checks[part.name])
    for key in rows:
        table.add_row(key, *(checks[part.name].get(key, "not measured") for part in PARTS))
    for label, field in (("utility: held-out delta, nats", "delta_nats"), ("utility gate", "outcome")):
        table.add_row(label, *(_utility(story, part.name, field) for part in PARTS))
    table.add_row("verdict", *(f"[bold]{_STATES[audits[part.name]['verdict']['state']]}[/]" for part in PARTS))
    console.print(table)
    console.print(f"[bold]Prompt[/]  {PROMPT}\n[bold]Answer[/]  {answer}\n")
    for part in PARTS:
        console.print(f"report ({part.name}): {story.root / f'audit-{part.name}' / 'audit.html'}", soft_wrap=True)
    console.print(f"{seconds:.0f} s in all")
    held = _exact_frames(audits["open"]) > 0 and _exact_frames(audits["clipped"]) == 0 and bool(answer)
    if not held:
        console.print("[bold red]the story did not hold: look at the reports[/]")
    return 0 if held else 1


def _checks(audit: dict[str, Any]) -> dict[str, str]:
    """One line a check: value, one-sided bounds, and state where it is not merely inconclusive."""
    lines = {}
    for result in audit["results"]:
        for check in result["checks"]:
            bounds = show_interval(check)
            shown = show_value(check, result) if bounds == DASH else f"{show_value(check, result)} ({bounds})"
            family = SHORT_FAMILIES.get(result["family"], result["family"])
            lines[f"{check['metric']}, {family}"] = f"{shown} {_STATES[check['state']]}"
    return lines


def _exact_frames(audit: dict[str, Any]) -> float:
    values = [
        check["value"]
        for result in audit["results"]
        for check in result["checks"]
        if check["metric"] == "exact_support_frames"
    ]
    return float(values[0])


def _utility(story: Story, part: str, field: str) -> str:
    value = json.loads((story.root / f"run-{part}" / "report.json").read_text())["utility"][field]
    return value if isinstance(value, str) else f"{value:+.3f}"


def _title(text: str) -> None:
    console.print(f"\n[bold cyan]==[/] [bold]{text}[/]", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
