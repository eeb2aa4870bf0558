"""Runs the studies of published inversion attacks cell by cell, and prints their tables.

A cell is one attack with its schedule on the rows of some prompts at one cut, behind one defence. Its result is one
JSON file in OUT/results, written whole or not at all; a cell whose file is there is not run again, so an interrupted
study goes on where it stopped, and two processes may share OUT when their --cells differ. Tables are made of the files.

Refused: results of another schedule or of other prompts in OUT. Ctrl-C loses the running cell alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from auditor.progress import shown, terminate_like_interrupt
from auditor.views.base import NotMeasurableError
from deploy.cells import INTERRUPTED, list_cells, run_missing
from deploy.reproduce.table import write_section
from deploy.study.cell import Bench, run_cell
from deploy.study.prompts import SHIPPED, digest_of
from deploy.study.results import Results
from deploy.study.settings import DEFAULT_FILE, Setup, StudySettings, load, setups
from deploy.study.table import BEGIN, END, render
from splitwire.errors import SplitwireError
from splitwire.private_files import replace_file

console = Console(stderr=True, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs what is missing; exit code 0 when every wanted cell has its result."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.settings)
        wanted = setups(settings, tuple(options.cells))
        results = Results(options.out / "results", digest_of(options.prompts))
        if options.list:
            list_cells(wanted, results)
            return 0
        if not options.table:
            with terminate_like_interrupt():
                _run(settings, wanted, results, options)
        _tell(settings, results, options.document)
    except (SplitwireError, NotMeasurableError) as error:
        console.print(f"study: {error}", style="bold red", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; finished cells are kept, run it again to go on")
        return INTERRUPTED
    return 0


def _run(settings: StudySettings, wanted: list[Setup], results: Results, options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    bench = Bench(settings.recipe, options.prompts, max(setup.cell.num_prompts for setup in setups(settings)))

    def run_one(setup: Setup) -> dict[str, Any]:
        with shown(console) as progress:
            return run_cell(setup, bench, progress)

    run_missing(wanted, results, run_one, console)


def _tell(settings: StudySettings, results: Results, document: Path | None) -> None:
    found = [(setup, results.get(setup)) for setup in setups(settings)]
    text = render(settings, found)
    if document is None:
        sys.stdout.write(text)
        return
    kept = [result for _, result in found if result is not None]
    content = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    replace_file(document.with_name("study.json"), content.encode("ascii"))
    write_section(document, text, BEGIN, END)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make study", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(".study"), help="folder of results, kept between runs")
    add("--settings", type=Path, default=DEFAULT_FILE, help="TOML file with recipe, attacks and cells")
    add("--prompts", type=Path, default=SHIPPED, help="JSON lines with a field query or text; the shipped facts else")
    add("--cells", nargs="*", default=[], metavar="PATTERN", help="run these cells alone, such as 'depth.*'")
    add("--threads", type=_count, default=1, help="threads of the attacks")
    add("--list", action="store_true", help="list the cells and end")
    add("--table", action="store_true", help="only tell the tables")
    add("--document", type=Path, help="put the tables into this file, and study.json beside it; stdout else")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
