"""Progress bars on a terminal, a line a task elsewhere; and one line, not many, while the other node is awaited."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tln.training import progress as seam

_LINE_SECONDS = 30.0


def start_logging() -> None:
    """Logs of this program; of the tries of one exchange only the first is told."""
    import stamina

    from splitwire.logging import configure, get_logger

    configure("tln")

    def tell_first(details: stamina.instrumentation.RetryDetails) -> None:
        if details.retry_num == 1:
            get_logger(__name__).warning("waiting for the untrusted node")

    stamina.instrumentation.set_on_retry_hooks([tell_first])


@contextmanager
def rich_progress() -> Iterator[seam.Progress]:
    """Shows progress on stderr: bars when it is a terminal, else a line when a task begins and now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description:28s}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bars(bars)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def begin(self, task: str, total: int) -> None:
        self._task = self._bars.add_task(task, total=total or None, note="")

    def advance(self, count: int = 1, note: str = "") -> None:
        if self._task is not None:
            self._bars.update(self._task, advance=count, note=note)


class _Lines:
    def __init__(self) -> None:
        self._task, self._total, self._done, self._shown = "", 0, 0, 0.0

    def begin(self, task: str, total: int) -> None:
        self._task, self._total, self._done = task, total, 0
        self._shown = time.monotonic()
        typer.echo(f"{task}: {total or ''} begins".replace(":  ", ": "), err=True)

    def advance(self, count: int = 1, note: str = "") -> None:
        self._done += count
        if time.monotonic() - self._shown >= _LINE_SECONDS or self._done == self._total:
            self._shown = time.monotonic()
            typer.echo(f"{self._task}: {self._done} of {self._total or 'as many as needed'} {note}".rstrip(), err=True)
