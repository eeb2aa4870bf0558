"""How far an audit is, told all along: a bar on a terminal, else a line for every stage and one every half minute.

The work calls a `Progress`; jobs that run side by side call a `Tick` of their own (workers.py). Neither hears anything
of the data.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from splitwire.console import printable

Progress = Callable[[str, int, int], None]
"""Called with a label, the work done and the work in all; 0 in all where that is not known."""

Tick = Callable[[float], None]
"""Called by a job every now and then with the share of it that is done. Raises when the job has to end."""

_LINE_SECONDS = 30.0


def silent(label: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
    del label, done, total


@contextlib.contextmanager
def shown(console: Console) -> Iterator[Progress]:
    """Progress on this console while the scope lasts."""
    if console.is_terminal:
        with _bar(console) as progress:
            yield progress
    else:
        yield _Lines(console)


@contextlib.contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """A scope in which SIGTERM is raised as KeyboardInterrupt, so that temporary files go and workers end."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    """One bar that shows the newest work."""
    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(label: str, done: int, total: int) -> None:
            bars.update(task, description=printable(label), completed=done, total=total or None)

        yield show


class _Lines:
    """A line when the stage changes (what stands before the colon), and one every half minute within a stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._stage = ""
        self._told = 0.0

    def __call__(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        stage, _, _ = label.partition(": ")
        is_new = stage != self._stage
        if not is_new and now - self._told < _LINE_SECONDS:
            return
        share = f" {done / total:.0%}" if total and not is_new else ""
        self._stage, self._told = stage, now
        self._console.out(f"{now - self._began:4.0f} s  {printable(label)}{share}", highlight=False)
