"""The tables of docs/experiments.md: from results alone, in a fixed order, and never a number that was not measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from deploy.reproduce.cell import SCHEMA
from deploy.reproduce.results import Results
from deploy.reproduce.settings import Cell, Recipe
from deploy.reproduce.table import BEGIN, END, NONE_YET, render, write_section
from splitwire.errors import SettingsError

ROW_NORM = "row_norm/gradient_only"


def result(cell: Cell, *, auc: float | None = 0.5, delta: float = 1.0) -> dict[str, Any]:
    """The result of a cell in which only these were measured."""
    checks = {} if auc is None else {"partition_auc": {"value": auc, "lower": auc - 0.01, "upper": auc + 0.01}}
    audit = {"results": {ROW_NORM: {"checks": checks, "details": {}}}}
    utility = {"delta_nats": delta, "delta_lower_nats": delta - 0.1, "delta_upper_nats": delta + 0.1}
    return {
        "schema": SCHEMA,
        "recipe_hash": Recipe().hash,
        "cell": asdict(cell),
        "training": {"utility": utility, "seconds_a_step": 1.0},
        "audits": {"audit": audit, "oracle": {"results": {}}},
        "seconds": {"train": 10.0, "all": 20.0},
    }


def cell(preset: str = "ours", seed: int = 1, variant: str = "") -> Cell:
    return Cell(preset, "facts", "four", 64, 32, seed, variant)


def lines(text: str, beginning: str) -> list[list[str]]:
    """The cells of every table line that begins so."""
    found = [line for line in text.splitlines() if line.startswith(f"| {beginning} ")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in found]


def test_several_seeds_share_a_line_and_variants_do_not() -> None:
    """Mean with smallest and largest; a variant has a line of its own below its preset, under its full name."""
    text = render([
        result(cell(variant="replay"), auc=0.7),
        result(cell(seed=2), auc=0.6),
        result(cell(seed=1), auc=0.5),
    ])  # fmt: skip
    read, cost, *runs = lines(text, "ours")
    assert read[5] == cost[5] == "2"
    assert "0.550 [0.500, 0.600]" in read
    assert cost[6] == "+1.000"
    assert [run[5] for run in runs] == ["1", "2"]
    variant = lines(text, "ours+replay")[0]
    assert variant[5] == "1"
    assert "0.700 [0.690, 0.710]" in variant


def test_presets_come_from_the_naked_one_to_ours() -> None:
    """Whatever order the results are read in; a preset that this version does not know comes last."""
    names = ["unknown", "ours", "published-mitigated", "published-open", "published-naked"]
    text = render(result(cell(name)) for name in names)
    first = text.split("\n\n")[1]
    assert [line.split(" ")[1] for line in first.splitlines()[2:]] == [*names[::-1][:4], "unknown"]


def test_what_was_not_measured_is_a_dash() -> None:
    """Never a zero; a seed without the number is counted."""
    read = lines(render([result(cell(), auc=None)]), "ours")[0]
    assert read[6:] == ["-"] * (len(read) - 6)
    both = lines(render([result(cell(seed=1)), result(cell(seed=2), auc=None)]), "ours")[0]
    assert "0.500 (1 of 2)" in both


def test_no_result_is_told() -> None:
    """Instead of empty tables."""
    assert render([]) == NONE_YET


def test_the_tables_go_between_the_markers_and_nowhere_else(tmp_path: Path) -> None:
    """Text around them stays; written twice it is the same; a document without markers is refused."""
    document = tmp_path / "page.md"
    document.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    for _ in range(2):
        write_section(document, "new \\1 table")
    assert document.read_text() == f"Before.\n{BEGIN}\n\nnew \\1 table\n{END}\nAfter.\n"
    document.write_text("no markers")
    with pytest.raises(SettingsError, match="no markers"):
        write_section(document, "new")
    with pytest.raises(SettingsError, match="cannot be read"):
        write_section(tmp_path / "nowhere.md", "new")


def test_results_are_kept_whole_and_those_of_another_recipe_refused(tmp_path: Path) -> None:
    """A cell has its own file, variant and all; numbers of two recipes must not share a table."""
    results = Results(tmp_path / "results", Recipe())
    assert results.get(cell()) is None
    assert results.all() == []
    for variant in ("", "replay"):
        results.put(cell(variant=variant), result(cell(variant=variant)))
    assert [found["cell"]["variant"] for found in results.all()] == ["replay", ""]
    assert results.get(cell(variant="replay")) == result(cell(variant="replay"))
    with pytest.raises(SettingsError, match="another recipe"):
        Results(tmp_path / "results", Recipe(threads=1)).get(cell())


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps({"schema": SCHEMA})])
def test_a_damaged_result_is_refused_by_name(tmp_path: Path, content: str) -> None:
    """One line that names the file and the remedy."""
    results = Results(tmp_path, Recipe())
    (tmp_path / f"{cell().name}.json").write_text(content)
    with pytest.raises(SettingsError, match=f"{cell().name}.json"):
        results.get(cell())
