"""How a watch looks: one screen that is kept current on a terminal, plain lines elsewhere. Never any content."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from auditor.watch.base import Reading
from auditor.watch.watcher import WatchState

Show = Callable[[WatchState], None]
_SCREEN_SECONDS = 0.5
_LINE_SECONDS = 10.0


@contextlib.contextmanager
def shown(console: Console) -> Iterator[Show]:
    """What shows a state while the scope lasts; it may be called as often as one likes."""
    if not console.is_terminal:
        yield paced(lambda state: console.out(line(state), highlight=False), _LINE_SECONDS)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield paced(lambda state: live.update(screen(state), refresh=True), _SCREEN_SECONDS)


def screen(state: WatchState) -> RenderableType:
    """Everything on one screen."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("detector", "reading", "at least", "ceiling", "frames", "evidence", ""):
        table.add_column(column, justify="left" if column in ("detector", "") else "right", no_wrap=True)
    for reading in state.readings:
        style = "bold red" if reading.leak else ""
        table.add_row(*_cells(reading), "LEAK" if reading.leak else "", style=style)
    parts: list[RenderableType] = [Text(_head(state)), table]
    if state.gate is not None:
        gate = state.gate
        parts.append(
            Text(f"gate on the newest {gate.total_rows} rows {gate.gate_pp:+.2f} pp, floor {gate.floor_pp:.2f}")
        )
    parts += [
        Text(f"LEAK {reading.detector}: {reading.leak}", style="red") for reading in state.readings if reading.leak
    ]
    return Group(*parts)


def line(state: WatchState) -> str:
    """The same in one line."""
    found = "; ".join(
        f"{reading.detector} {_cells(reading)[1]}{' LEAK' if reading.leak else ''}" for reading in state.readings
    )
    return f"{_head(state)} | {found}"


def _head(state: WatchState) -> str:
    if not state.has_begun:
        return "waiting for the recorder"
    frames = ", ".join(f"{count} {hop.lower()}" for hop, count in sorted(state.num_frames.items())) or "no frame yet"
    parts = [f"{state.seconds:.0f} s", frames, f"{state.num_bytes / 2**20:.1f} MiB read"]
    if state.backlog_bytes:
        parts.append(f"{state.backlog_bytes / 2**20:.1f} MiB behind")
    for count, what in (
        (state.num_skipped, "frames SKIPPED"),
        (state.num_unmatched, "frames without truth or other half"),
        (state.num_problems, "messages against the contract"),
    ):
        if count:
            parts.append(f"{count} {what}")
    if state.is_closed:
        parts.append("bundle closed")
    return ", ".join(parts)


def _cells(reading: Reading) -> tuple[str, ...]:
    evidence = ""
    if reading.evidence is not None and reading.evidence_needed is not None:
        evidence = f"{reading.evidence:+.1f} of {reading.evidence_needed:.1f}"
    return (
        reading.detector,
        _number(reading.value, reading.unit),
        _number(reading.lower, reading.unit),
        _number(reading.ceiling, reading.unit),
        str(reading.num_groups),
        evidence,
    )


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "frames":
        return f"{value:.0f} frames"
    return f"{value:+.2f} pp" if unit == "pp" else f"{value:.3f}"


def paced(show: Show, seconds: float) -> Show:
    """Not more often than that, but at once when the bundle is closed."""
    told, was_closed = 0.0, False

    def show_sometimes(state: WatchState) -> None:
        nonlocal told, was_closed
        now = time.monotonic()
        if now - told >= seconds or state.is_closed > was_closed:
            told, was_closed = now, state.is_closed
            show(state)

    return show_sometimes
