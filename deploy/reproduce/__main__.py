"""Reproduces the published results in shape, cell by cell, and writes the tables of docs/experiments.md.

A cell is one preset, text, cut, width, budget and seed. Its result is one JSON file in OUT/results, written whole or
not at all; a cell whose file is there is not run again, so an interrupted reproduction goes on where it stopped. The
tables are made of those files alone.

Refused: results of another recipe in OUT. Ctrl-C leaves no process behind; the cell that was running is run anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.cells import INTERRUPTED, list_cells, run_missing
from deploy.demo.processes import ProcessFailedError, run
from deploy.reproduce.cell import Bench, run_cell
from deploy.reproduce.results import Results
from deploy.reproduce.settings import DEFAULT_FILE, Cell, Recipe, cells, load
from deploy.reproduce.table import render, write_section
from splitwire.errors import SettingsError
from splitwire.private_files import replace_file

DOCUMENT = Path("docs/experiments.md")

console = Console(stderr=True, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs what is missing; exit code 0 when every wanted cell has its result."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        settings = load(options.settings)
        wanted = cells(settings, tuple(options.cells))
        results = Results(options.out.resolve() / "results", settings.recipe)
        if options.list:
            list_cells(wanted, results)
            return 0
        if not options.table:
            _run(wanted, results, options, settings.recipe)
        _write_tables(results.all(), options)
    except (SettingsError, ProcessFailedError) as error:
        console.print(f"reproduce: {error}", style="bold red", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; finished cells are kept, run it again to go on")
        return INTERRUPTED
    return 0


def _run(wanted: list[Cell], results: Results, options: argparse.Namespace, recipe: Recipe) -> None:
    root = options.out.resolve()

    def run_one(cell: Cell) -> dict[str, Any]:
        _make_keys(root)
        bench = Bench(root / "work" / cell.name, root / "pki", root / "keys", recipe, options.settings.resolve().parent)
        return run_cell(cell, bench, keep=options.keep)

    run_missing(wanted, results, run_one, console, after=lambda: _write_tables(results.all(), options))


def _make_keys(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "pki").exists():
        run(["splitwire", "pki", "init", str(root / "pki"), "--loopback"], quiet=True)
    if not (root / "keys").exists():
        run(["auditor", "keygen", str(root / "keys")], quiet=True)


def _write_tables(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    text = render(found)
    if options.document is None:
        sys.stdout.write(text)
        return
    kept = options.document.with_suffix(".json")
    replace_file(kept, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode("ascii"))
    write_section(options.document, text)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make reproduce", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(".reproduce"), help="folder of results, kept between runs")
    add("--settings", type=Path, default=DEFAULT_FILE, help="TOML file with recipe and grid")
    add("--cells", nargs="*", default=[], metavar="PATTERN", help="run these cells alone, such as 'ours.*.s1'")
    add("--list", action="store_true", help="list the cells and end")
    add("--table", action="store_true", help="only write the tables anew")
    add("--keep", action="store_true", help="keep bundles, logs and audit pages of each cell")
    add("--document", type=_document, default=DOCUMENT, help="file for the tables, results beside it; - for stdout")
    return parser


def _document(text: str) -> Path | None:
    return None if text == "-" else Path(text)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
