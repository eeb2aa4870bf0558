"""Runs the cells of a grid that have no result yet, one after the other, and tells how long it may take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rich.console import Console

INTERRUPTED = 130
"""Exit code after Ctrl-C: finished cells are kept."""


class Cell(Protocol):
    """What has one result."""

    @property
    def name(self) -> str:
        """The name of its result file."""


C = TypeVar("C", bound=Cell)
C_contra = TypeVar("C_contra", bound=Cell, contravariant=True)


class Results(Protocol[C_contra]):
    """Where results are kept."""

    def get(self, cell: C_contra, /) -> dict[str, Any] | None:
        """The result of a cell, or None."""

    def put(self, cell: C_contra, result: dict[str, Any], /) -> None:
        """Keeps a result."""


def run_missing(
    wanted: Sequence[C],
    results: Results[C],
    run: Callable[[C], dict[str, Any]],
    console: Console,
    *,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Runs what is missing and keeps each result before the next begins; `after` is called once it is kept.

    A result says in `seconds` how long it took, `all` and by part.
    """
    missing = [cell for cell in wanted if results.get(cell) is None]
    console.print(f"{len(wanted)} cells, {len(wanted) - len(missing)} of them done")
    began = time.monotonic()
    for number, cell in enumerate(missing, start=1):
        console.print(f"[bold cyan]==[/] [{number}/{len(missing)}] {cell.name}", soft_wrap=True)
        result = run(cell)
        results.put(cell, result)
        after()
        left = (time.monotonic() - began) / number * (len(missing) - number)
        console.print(f"   {_told(result['seconds'])}; about {left / 60:.0f} min left")


def list_cells(wanted: Sequence[C], results: Results[C]) -> None:
    """Names on stdout, and which have a result."""
    for cell in wanted:
        state = "done" if results.get(cell) else "missing"
        sys.stdout.write(f"{cell.name}  {state}\n")


def _told(seconds: Mapping[str, float]) -> str:
    train = f", of which training {seconds['train']:.0f} s" if "train" in seconds else ""
    return f"{seconds['all']:.0f} s{train}"
