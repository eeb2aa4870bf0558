"""Studies: which cells there are, what defends rows, what a result holds, and that nothing is mixed or run twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.attacks.inversion.mc import CompletedText
from auditor.attacks.inversion.sipit import SipIt
from deploy.study.__main__ import main
from deploy.study.cell import Bench
from deploy.study.defences import Defence
from deploy.study.prompts import SHIPPED, load_prompts
from deploy.study.settings import DEFAULT_FILE, Cell, Recipe, Setup, Variant, load, setups
from deploy.study.table import BEGIN, END, NONE_YET, render
from deploy.study.victims import answered, tuned_head
from splitwire.errors import SettingsError

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS_TH = torch.arange(1.0, 25.0).reshape(4, 6)
CELLS = """
[recipe]
source = "{model}"
fewest_tokens = 6
most_tokens = 12
answer_tokens = 3
auxiliary_tokens = 1200
tail_layers = 2
tuned_steps = 2

[[variants]]
name = "sipit"
attack = "sipit"
parameters = {{ most_steps = 8 }}

[[variants]]
name = "mc"
attack = "mc"

[[variants]]
name = "random"
attack = "random"

[[studies]]
name = "forward"
title = "Forward"

[[studies]]
name = "both"
title = "Both sides"

[[grid]]
study = "forward"
variants = ["sipit", "random"]
blocks = [1]
num_prompts = 5

[[grid]]
study = "both"
variants = ["mc"]
blocks = [2]
num_prompts = 2
answers = true
"""


@pytest.fixture
def recipe(tiny_model: Callable[[str], Path]) -> Recipe:
    return Recipe(
        source=str(tiny_model("llama")),
        fewest_tokens=6,
        most_tokens=12,
        answer_tokens=3,
        auxiliary_tokens=1200,
        tail_layers=2,
    )


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Ten prompts of 6 to 12 letters, which are as many tokens, and one that is too long."""
    drawn = np.random.default_rng(3)
    texts = ["".join(drawn.choice([*"abcdefgh"], 6 + number % 6)) for number in range(10)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"query": text}) for text in [*texts, "x" * 40]))
    return file


@pytest.fixture
def arguments(tmp_path: Path, prompts: Path, recipe: Recipe) -> list[str]:
    """Of a study of three cells on a tiny model."""
    file = tmp_path / "study.toml"
    file.write_text(CELLS.format(model=recipe.source))
    return ["--out", str(tmp_path / "out"), "--settings", str(file), "--prompts", str(prompts)]


def cell(**changes: Any) -> Cell:
    return replace(Cell("s", "v", 1, "none", "public", answers=False, num_prompts=2), **changes)


def bench(recipe: Recipe, prompts: Path) -> Bench:
    return Bench(recipe, prompts, most_prompts=5)


def test_the_shipped_studies_are_those_of_the_page() -> None:
    """Every cell has a name of its own, and depth, levels, split points and both targets are there."""
    names = [setup.cell.name for setup in setups(load(DEFAULT_FILE))]
    assert len(names) == len(set(names))
    assert {f"depth.actinv.b{blocks}.none.n6" for blocks in range(2, 8)} <= set(names)
    for kind in ("element", "token"):
        assert {f"defence.actinv.b5.{kind}-{ratio}.n5" for ratio in (0.1, 0.3, 0.5, 0.7, 0.9)} <= set(names)
    assert len([name for name in names if name.startswith("defence.actinv.b5.gaussian-")]) == 5
    assert {f"pidi-split.pidi.b{blocks}.none.n5" for blocks in (3, 5, 6)} <= set(names)
    assert {f"transfer.{name}.b5.none.tuned.n3" for name in ("tbs-singular-2e-2", "replication")} <= set(names)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('attack = "sipit"', 'attack = "sip-it"'),
        ("most_steps = 8", "steps = 8"),
        ('study = "both"', 'study = "neither"'),
        ('variants = ["mc"]', 'variants = ["md"]'),
        ("answers = true", 'answers = true\ndefences = ["token-0.5"]'),
        ("blocks = [1]", 'blocks = [1]\ndefences = ["element-2"]'),
    ],
)
def test_a_settings_file_that_names_what_is_not_there_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """Before anything runs."""
    file = tmp_path / "study.toml"
    assert old in CELLS
    file.write_text(CELLS.format(model="none").replace(old, new))
    with pytest.raises(SettingsError):
        load(file)


def test_noise_has_the_strength_that_its_name_tells() -> None:
    """As such, or as a share of the rows' own deviation."""
    rows_TH = 8 * torch.randn(200, 50, generator=torch.Generator().manual_seed(1))
    for name, deviation in (("gaussian-0.1", 0.1), ("scaled-0.1", 0.8)):
        noise_TH = Defence.parse(name).apply(rows_TH, torch.Generator().manual_seed(2)) - rows_TH
        assert float(noise_TH.std()) == pytest.approx(deviation, rel=0.03)


def test_sparse_rows_keep_the_largest_entries_of_the_text_or_of_each_row() -> None:
    """`element` empties whole rows of small entries, `token` takes as many from each."""
    element_TH = Defence.parse("element-0.5").apply(ROWS_TH, torch.Generator())
    assert torch.equal(element_TH, torch.where(ROWS_TH > 12, ROWS_TH, 0.0))
    token_TH = Defence.parse("token-0.5").apply(-ROWS_TH, torch.Generator())
    assert torch.equal(token_TH[:, :3], torch.zeros(4, 3))
    assert torch.equal(token_TH[:, 3:], -ROWS_TH[:, 3:])
    assert torch.equal(Defence.parse("none").apply(ROWS_TH, torch.Generator()), ROWS_TH)


@pytest.mark.parametrize(
    "name", ["", "noise-1", "gaussian", "gaussian-x", "none-1", "token-1.5", "scaled--1", "gaussian-nan"]
)
def test_a_defence_that_is_none_is_refused(name: str) -> None:
    """With the names that there are."""
    with pytest.raises(SettingsError, match="give none, gaussian-S"):
        Defence.parse(name)


def test_of_a_document_the_opening_sentences_are_taken(recipe: Recipe, prompts: Path) -> None:
    """As many as there is room for, and none of a sentence in part."""
    tokenizer = bench(recipe, prompts).tokenizer
    texts = ["abcde. fgh. ijklmno", "a sentence that is too long. b"]
    prompts.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tokens,) = load_prompts(prompts, tokenizer, recipe, 1).tokens
    assert tokenizer.decode(tokens) == "abcde. fgh."


def test_prompts_are_drawn_by_the_seed_and_never_cut(recipe: Recipe, prompts: Path) -> None:
    """Those of the wanted length, each once; too few are refused, and so is a line without one."""
    tokenizer = bench(recipe, prompts).tokenizer
    found = load_prompts(prompts, tokenizer, recipe, 5)
    assert len(found.tokens) == 10
    assert {len(tokens) for tokens in found.tokens} <= set(range(6, 13))
    with pytest.raises(SettingsError, match="10 different prompts"):
        load_prompts(prompts, tokenizer, recipe, 11)
    prompts.write_text('{"prompt": "abc"}\n')
    with pytest.raises(SettingsError, match="line 1"):
        load_prompts(prompts, tokenizer, recipe, 1)


def test_the_shipped_prompts_are_enough_for_the_shipped_studies(smollm2: Path) -> None:
    """With the model of the shipped studies."""
    settings = load(DEFAULT_FILE)
    most = max(setup.cell.num_prompts for setup in setups(settings))
    tokenizer = Bench(replace(settings.recipe, source=str(smollm2)), SHIPPED, most).tokenizer
    assert len(load_prompts(SHIPPED, tokenizer, settings.recipe, most + 1).tokens) > most


def test_rows_are_those_of_the_public_head_behind_the_defence(recipe: Recipe, prompts: Path) -> None:
    """Undefended to the bit; the answer is what the whole model says, and its rows come back from the middle."""
    table = bench(recipe, prompts)
    plain = cell()
    model = table.model(plain)
    victims = table.victims(plain, model)
    tokens = table.prompts.tokens[0]
    with torch.no_grad():
        rows_TH = model.head(torch.from_numpy(tokens)[None])[0]
    assert torch.equal(victims.texts[0].forward, rows_TH)
    assert victims.texts[0].returned is None
    defended = table.victims(cell(defence="token-0.5"), model).texts[0].forward
    assert int((defended == 0).sum()) == defended.numel() // 2
    both = cell(answers=True, blocks=2)
    model = table.model(both)
    answers = table.victims(both, model)
    asked = np.concatenate([tokens, table.prompts.handover])
    assert table.tokenizer.decode(table.prompts.handover) == "\nassistant: "
    assert answers.texts[0].num_prompt == len(asked)
    assert answers.texts[0].returned is not None
    assert np.array_equal(answers.tokens[0], answered(model, model.head, asked, 3))
    assert np.array_equal(answers.tokens[0][: len(asked)], asked)


def test_what_a_wire_does_not_tell_is_not_scored(recipe: Recipe, prompts: Path) -> None:
    """The following token on the forward wire; with answers the same places for every attack."""
    table = bench(recipe, prompts)
    plain, both = cell(), cell(answers=True, blocks=2)
    forward = table.victims(plain, table.model(plain)).truths(SipIt(), answers=False)[0]
    assert (forward[-1], int((forward < 0).sum())) == (-1, 1)
    victims = table.victims(both, table.model(both))
    for attack in (SipIt(), CompletedText()):
        truth = victims.truths(attack, answers=True)[0]
        prompt, handover = len(table.prompts.tokens[0]), len(table.prompts.handover)
        assert np.flatnonzero(truth < 0).tolist() == [0, *range(prompt, prompt + handover), len(truth) - 1]


def test_a_tuned_target_makes_other_rows_and_leaves_the_public_head_alone(recipe: Recipe, prompts: Path) -> None:
    """Training is repeatable."""
    table = bench(recipe, prompts)
    model = table.model(cell())
    tokens_1T = torch.from_numpy(table.prompts.tokens[0])[None]
    before = model.head(tokens_1T).detach()
    heads = [tuned_head(model, table.prompts.tokens[5:], recipe) for _ in range(2)]
    assert torch.equal(model.head(tokens_1T), before)
    assert torch.equal(heads[0](tokens_1T), heads[1](tokens_1T))
    assert not torch.allclose(heads[0](tokens_1T), before)


def test_a_study_runs_once_and_tells_what_it_found(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """SipIt reads a tiny model's rows, chance does not, and completion reads the answer."""
    assert main([*arguments, "--cells", "forward.sipit.*"]) == 0
    told = capsys.readouterr().out
    assert "Not run, 1 of 2: forward.random.b1.none.n5." in told
    assert "### Both sides" not in told
    assert main(arguments) == 0
    told = capsys.readouterr().out
    results = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "out" / "results").iterdir()}
    accuracy = {
        name: {(m["name"], m["part"]): m["value"] for m in result["metrics"]}["token_accuracy", part]
        for name, result, part in (
            ("sipit", results["forward.sipit.b1.none.n5"], "text"),
            ("random", results["forward.random.b1.none.n5"], "text"),
            ("mc", results["both.mc.b2.none.n2"], "answer"),
        )
    }
    assert accuracy["sipit"] > 0.9
    assert accuracy["random"] < 0.2
    assert accuracy["mc"] == 1.0
    assert "### Forward" in told
    assert "| sipit | most_steps 8 | 1 |" in told
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "results").iterdir()}
    assert main(arguments) == 0
    assert files == {file: file.stat().st_mtime_ns for file in (tmp_path / "out" / "results").iterdir()}
    document = tmp_path / "page.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    assert main([*arguments, "--table", "--document", str(document)]) == 0
    assert "### Both sides" in document.read_text()
    assert len(json.loads((tmp_path / "study.json").read_text())) == 3
    prompts = Path(arguments[-1])
    prompts.write_text(prompts.read_text() + "\n")
    assert main([*arguments, "--list"]) == 1


def test_another_schedule_is_another_setup() -> None:
    """A changed parameter changes the hash of its own cells alone."""
    hashes = {
        Setup(Recipe(), Variant("v", "actinv", parameters), cell(blocks=blocks)).hash
        for parameters in ({}, {"num_steps": 10})
        for blocks in (1, 2)
    }
    assert len(hashes) == 4
    published = Variant("v", "actinv", {"num_steps": 2000})
    assert Setup(Recipe(), published, cell()).hash == Setup(Recipe(), Variant("v", "actinv"), cell()).hash


def test_lines_stand_by_attack_defence_and_depth() -> None:
    """Whatever order the cells ran in; what was not measured is a dash."""
    settings = load(DEFAULT_FILE)
    empty = {"metrics": [], "replaced": {}, "num_positions": 10, "seconds": {"cpu": 5.0, "fit": None, "by_text": [1.0]}}
    text = render(settings, [(setup, empty) for setup in reversed(setups(settings, ("d*.actinv.*",)))])
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if " actinv " in line]
    undefended = [str(blocks) for blocks in range(2, 8)]
    assert [line[2] for line in lines[:12]] == [*undefended, *undefended]
    levels = [*(f"gaussian-{level}" for level in (0.01, 0.0316, 0.1, 0.316, 1)), "scaled-0.1"]
    assert [line[3] for line in lines[12:18]] == levels
    assert lines[0][-2:] == ["0.500", "-"]
    assert set(lines[0][5:-2]) == {"-"}


def test_no_result_is_told() -> None:
    """Instead of empty tables."""
    settings = load(DEFAULT_FILE)
    found = [(setup, None) for setup in setups(settings)]
    assert render(settings, found) == NONE_YET
