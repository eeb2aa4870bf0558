"""The reproduction with a tiny model and real processes: a result a cell, whole or not at all, and tables from them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "deploy" / "demo" / "data"
DOCUMENT = "# Experiments\n\n<!-- results: written by make reproduce -->\n<!-- results end -->\n\nAfter.\n"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def recipe(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """Two small cells: the published frame with raw gradients, and ours."""
    (tmp_path / "experiments.md").write_text(DOCUMENT)
    file = tmp_path / "reproduce.toml"
    file.write_text(
        f"""
[recipe]
source = "{tiny_model("llama")}"
threads = 1
pairs = ["corpus.max_documents=40", "corpus.max_blocks_per_document=3", "train.frames_per_step=8",
         "train.max_evaluation_blocks=4"]
mechanism_pairs = ["frame.decoys.pool_size=256"]
[recipe.audit]
epochs = 1
max_classes = 64
repetitions = 200
[[recipe.corpora]]
name = "facts"
path = "{DATA / "private.jsonl"}"
public_path = "{DATA / "public.jsonl"}"
[[recipe.depths]]
name = "two"
first_layer = 2
last_layer = 4
[[grid]]
presets = ["published-open", "ours"]
seeds = [1]
corpora = ["facts"]
depths = ["two"]
widths = [16]
steps = [12]
"""
    )
    return file


def command(recipe: Path, *more: str) -> list[str]:
    folder = recipe.parent
    own = ["--settings", recipe, "--out", folder / "out", "--document", folder / "experiments.md"]
    return [str(part) for part in (sys.executable, "-m", "deploy.reproduce", *own, *more)]


def reproduce(recipe: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(recipe, *more), cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


def results(recipe: Path) -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in sorted((recipe.parent / "out" / "results").glob("*"))}


def test_cells_run_once_and_make_the_tables(recipe: Path) -> None:
    """Selected, then all: the first result stays byte for byte. Open: every frame exact, and ours: none."""
    done = reproduce(recipe, "--cells", "published-open.*")
    assert done.returncode == 0, done.stderr[-3000:]
    first = results(recipe)
    assert list(first) == ["published-open.facts.two.w16.n12.s1"]
    done = reproduce(recipe)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 cells, 1 of them done" in done.stderr
    both = results(recipe)
    assert both["published-open.facts.two.w16.n12.s1"] == first["published-open.facts.two.w16.n12.s1"]
    share = {
        name.partition(".")[0]: json.loads(text)["audits"]["audit"]["results"]["gradient_support/gradient_only"]
        for name, text in both.items()
    }
    assert share["published-open"]["checks"]["exact_support_frames"]["value"] == 12 * 8
    assert share["ours"]["checks"]["exact_support_frames"]["value"] == 0
    written = (recipe.parent / "experiments.md").read_text()
    assert "| published-open | facts | two | 16 | 12 | 1 | 100% |" in written
    assert "| ours | facts | two | 16 | 12 | 1 | 0% |" in written
    assert written.endswith("After.\n")
    assert not any((recipe.parent / "out" / "work").iterdir())
    changed = recipe.read_text().replace("epochs = 1", "epochs = 2")
    recipe.write_text(changed)
    refused = reproduce(recipe)
    assert refused.returncode == 1
    assert "another recipe" in refused.stderr


def test_an_interruption_leaves_no_result_and_no_process(recipe: Path) -> None:
    """SIGTERM in the middle of a cell: nothing half is kept, and no program of it runs on."""
    process = subprocess.Popen(
        command(recipe), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    log = recipe.parent / "out" / "work" / "published-open.facts.two.w16.n12.s1" / "ucn.log"
    deadline = time.monotonic() + 200
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=100)
    assert process.returncode == 130, printed[-2000:]
    assert results(recipe) == {}
    running = [
        entry
        for entry in psutil.process_iter(["cmdline"])
        if str(recipe.parent) in " ".join(entry.info["cmdline"] or ())
    ]
    assert running == []
