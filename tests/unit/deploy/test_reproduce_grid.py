"""Which cells `make reproduce` runs, what they are called, and what each tells the trusted node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.reproduce.cell import plans, tln_pairs
from deploy.reproduce.settings import DEFAULT_FILE, HERE, Cell, Grid, ReproduceSettings, cells, load
from splitwire.errors import SettingsError
from splitwire.settings import load_settings
from tln.presets import preset_file, preset_names
from tln.settings import TlnSettings

POLICIES = ("open", "clip_noise", "matched", "replay")


@pytest.fixture(scope="module")
def shipped() -> ReproduceSettings:
    """The recipe and grid that are shipped."""
    return load(DEFAULT_FILE)


def named(settings: ReproduceSettings, *patterns: str) -> list[str]:
    return [cell.name for cell in cells(settings, patterns)]


def trusted(cell: Cell, settings: ReproduceSettings) -> TlnSettings:
    """The settings of the trusted node in that cell."""
    pairs = [tuple(pair.split("=", 1)) for pair in tln_pairs(cell, settings.recipe, HERE)]
    overrides = [(key, value) for key, value in pairs]
    return load_settings(TlnSettings, program="tln", base=preset_file(cell.preset), environment={}, overrides=overrides)


def test_the_name_says_everything_that_tells_two_cells_apart() -> None:
    """A variant is part of it, after a plus; without one there is no plus."""
    cell = Cell("ours", "facts", "four", 64, 32, seed=2)
    assert cell.name == "ours.facts.four.w64.n32.s2"
    assert replace(cell, variant="replay").name == "ours+replay.facts.four.w64.n32.s2"
    assert replace(cell, variant="replay").defence == "ours+replay"
    changes = [{"preset": "x"}, {"corpus": "x"}, {"depth": "x"}, {"width": 1}, {"steps": 1}, {"seed": 1}]
    assert len({cell.name, *(replace(cell, **change).name for change in changes)}) == len(changes) + 1


def test_the_shipped_grid_has_what_the_page_promises(shipped: ReproduceSettings) -> None:
    """Every preset with three seeds, the four gradient policies, both texts, cuts, widths and budgets; each once."""
    names = named(shipped)
    assert len(names) == len(set(names))
    main = {f"{preset}.facts.four.w64.n64.s{seed}" for preset in preset_names() for seed in (1, 2, 3)}
    assert main <= set(names)
    assert {f"ours+{policy}.facts.four.w64.n64.s1" for policy in POLICIES} <= set(names)
    assert {f"ours.facts.{cut}.w{width}.n32.s1" for cut in ("four", "twelve") for width in (64, 128)} <= set(names)
    assert {f"{preset}.speeches.four.w64.n64.s1" for preset in preset_names()} <= set(names)


def test_the_first_seed_of_a_grid_comes_first_and_a_cell_of_two_grids_once() -> None:
    """So that an interrupted run has a whole table of one seed before a second."""
    grid = Grid(("ours", "published-open"), (1, 2), ("facts",), ("four",), (64,), (8,))
    settings = ReproduceSettings(grid=(grid, replace(grid, seeds=(1,), variants=("", "replay"))))
    assert named(settings) == [
        "ours.facts.four.w64.n8.s1",
        "published-open.facts.four.w64.n8.s1",
        "ours.facts.four.w64.n8.s2",
        "published-open.facts.four.w64.n8.s2",
        "ours+replay.facts.four.w64.n8.s1",
        "published-open+replay.facts.four.w64.n8.s1",
    ]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("ours.*.s3", {"ours.facts.four.w64.n64.s3"}),
        ("ours+*", {f"ours+{policy}.facts.four.w64.n64.s1" for policy in POLICIES}),
    ],
)
def test_patterns_select_by_name(shipped: ReproduceSettings, pattern: str, found: set[str]) -> None:
    """A preset without its variants, and the variants alone."""
    assert set(named(shipped, pattern)) == found


def test_a_pattern_without_a_cell_is_refused(shipped: ReproduceSettings) -> None:
    """A typing error must not end as a run of nothing."""
    with pytest.raises(SettingsError, match="no cell is named theirs"):
        cells(shipped, ("theirs",))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ('presets = ["theirs"]', "preset 'theirs' is unknown"),
        ('corpora = ["nowhere"]', "'nowhere', which recipe.corpora lacks"),
        ('depths = ["nowhere"]', "'nowhere', which recipe.depths lacks"),
        ('variants = ["nowhere"]', "'nowhere', which recipe.variants lacks"),
    ],
)
def test_a_grid_that_names_what_the_recipe_lacks_is_refused(tmp_path: Path, changed: str, told: str) -> None:
    """Before the first cell runs."""
    grid = {"presets": '["ours"]', "seeds": "[1]", "corpora": '["facts"]', "depths": '["four"]', "widths": "[64]"}
    grid |= {"steps": "[8]", changed.partition(" = ")[0]: changed.partition(" = ")[2]}
    recipe = DEFAULT_FILE.read_text().partition("[[grid]]")[0]
    file = tmp_path / "reproduce.toml"
    file.write_text(recipe + "[[grid]]\n" + "".join(f"{key} = {value}\n" for key, value in grid.items()))
    with pytest.raises(SettingsError, match=told):
        load(file)


def test_every_cell_changes_the_preset_as_it_says(shipped: ReproduceSettings) -> None:
    """Width, cut and steps are those of the name; the adversaries of every preset act within the budget."""
    depths = {depth.name: depth for depth in shipped.recipe.depths}
    for cell in cells(shipped):
        settings = trusted(cell, shipped)
        assert settings.frame.bottleneck.width == cell.width
        assert settings.train.steps == cell.steps
        assert settings.model.first_layer == depths[cell.depth].first_layer
        assert settings.adversaries.is_on
        assert settings.adversaries.warmup_steps < cell.steps
        assert Path(settings.corpus.path).exists()


def test_the_four_policies_differ_in_nothing_but_the_gradient(shipped: ReproduceSettings) -> None:
    """Frames of equal size, the same frame and the same adversaries."""
    found = {cell.variant: trusted(cell, shipped) for cell in cells(shipped, ("ours+*",))}
    assert {name: settings.gradient.policy for name, settings in found.items()} == {name: name for name in POLICIES}
    assert len({settings.frame for settings in found.values()}) == 1
    assert len({(settings.adversaries, settings.train, settings.stack) for settings in found.values()}) == 1


def test_the_hash_follows_the_recipe_and_not_the_grid(shipped: ReproduceSettings) -> None:
    """The grid may grow; a result of other settings must not pass for one of these."""
    recipe = shipped.recipe
    assert replace(shipped, grid=()).recipe.hash == recipe.hash
    for changed in ({"pairs": recipe.pairs[:-1]}, {"variants": recipe.variants[:-1]}, {"threads": 1}):
        assert replace(recipe, **changed).hash != recipe.hash


def test_the_two_audits_of_a_cell_split_alike_by_seed(shipped: ReproduceSettings) -> None:
    """The arm that is told the real rows is scored on the documents of the one that is not."""
    first, second = plans(shipped.recipe, 1), plans(shipped.recipe, 2)
    assert first["audit"].split == first["oracle"].split != second["audit"].split
    assert (first["audit"].partition, first["oracle"].partition) == ("auto", "oracle")
