"""What is studied: attacks with their schedules, and which of them run where. A TOML file, by default study.toml here.

The hash of a cell covers the recipe, its attack with every parameter, and where it runs; a result of another hash is
refused rather than mixed in. So cells may be added, and one schedule changed, without running everything again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal

from auditor.attacks.base import Attack
from auditor.attacks.inversion import INVERSIONS
from auditor.attacks.inversion.parameters import check_parameters, configured, parameters_of
from auditor.plan import InversionSettings
from deploy.study.baseline import RandomGuess
from deploy.study.defences import Defence
from splitwire.errors import SettingsError
from splitwire.settings import load_settings, settings_hash

DEFAULT_FILE = Path(__file__).resolve().parent / "study.toml"

Target = Literal["public", "tuned"]
"""Whose head made the rows: the public model's, or one that was trained further."""


@dataclass(frozen=True)
class Recipe:
    """What every cell has in common."""

    source: str = "smollm2-135m-instruct"
    """The model: a name, a folder or a hub id."""
    seed: int = 0
    """Draws prompts, noise and what attacks draw."""
    fewest_tokens: int = 20
    """Shorter prompts are left out."""
    most_tokens: int = 40
    """Longer prompts are left out."""
    answer_tokens: int = 16
    """Of an answer, decoded greedily, where a study reads answers."""
    auxiliary_tokens: int = 20_000
    """Of the shipped public text, for attacks that learn."""
    tail_layers: int = 5
    """Layers after the delegated ones where no answer is studied; elsewhere as many as before them."""
    known_texts: int = 48
    """Public texts whose rows of a tuned target are known to the attacker."""
    known_tokens: int = 64
    """Of each."""
    tuned_steps: int = 60
    """By which a tuned target was trained further, one prompt each."""
    tuned_learning_rate: float = 3e-4
    """Of AdamW."""


@dataclass(frozen=True)
class Variant:
    """An attack with parameters in place of its published ones."""

    name: str
    attack: str
    parameters: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """One table."""

    name: str
    title: str


@dataclass(frozen=True)
class Grid:
    """Every combination of these is a cell of the study."""

    study: str
    variants: tuple[str, ...]
    blocks: tuple[int, ...]
    """Layers before the cut."""
    num_prompts: int
    defences: tuple[str, ...] = ("none",)
    """none, gaussian-S (standard deviation), scaled-R (of the rows' own), element-R or token-R (share of zeros)."""
    targets: tuple[Target, ...] = ("public",)
    answers: bool = False
    """Whether texts are prompt and answer, and cross both ways."""


@dataclass(frozen=True)
class StudySettings:
    """Recipe, attacks, tables and cells, in the order in which they run."""

    recipe: Recipe = field(default_factory=Recipe)
    variants: tuple[Variant, ...] = ()
    studies: tuple[Study, ...] = ()
    grid: tuple[Grid, ...] = ()

    @cached_property
    def variants_by_name(self) -> Mapping[str, Variant]:
        """Of the recipe's attacks."""
        return {variant.name: variant for variant in self.variants}


@dataclass(frozen=True)
class Cell:
    """One attack on one set of rows."""

    study: str
    variant: str
    blocks: int
    defence: str
    target: Target
    answers: bool
    num_prompts: int

    @property
    def name(self) -> str:
        """The name of its result file."""
        made_by = "" if self.target == "public" else f".{self.target}"
        return f"{self.study}.{self.variant}.b{self.blocks}.{self.defence}{made_by}.n{self.num_prompts}"


@dataclass(frozen=True)
class Setup:
    """Everything that a cell's numbers follow from, but the prompts."""

    recipe: Recipe
    variant: Variant
    cell: Cell

    @property
    def name(self) -> str:
        """The name of its result file."""
        return self.cell.name

    @property
    def hash(self) -> str:
        """SHA-256 hex of the canonical form, with every parameter of the attack."""
        told = replace(self.variant, parameters=parameters_of(self.attack))
        return settings_hash(replace(self, variant=told))

    @property
    def attack(self) -> Attack:
        """The attack as the variant sets it."""
        parameters = {self.variant.attack: self.variant.parameters} if self.variant.parameters else {}
        return configured(ATTACKS[self.variant.attack], InversionSettings(parameters=parameters))


ATTACKS: Mapping[str, Attack] = {attack.name: attack for attack in (*INVERSIONS, RandomGuess())}


def load(file: Path) -> StudySettings:
    """The settings of a TOML file; SettingsError for names that no entry has."""
    settings = load_settings(StudySettings, program="study", file=file, environment={})
    for variant in settings.variants:
        _one_of(variant.attack, ATTACKS, f"variant {variant.name}: attack")
        if variant.parameters:
            check_parameters(
                ATTACKS, InversionSettings(parameters={variant.attack: variant.parameters}), f"variant {variant.name}"
            )
    for grid in settings.grid:
        _one_of(grid.study, [study.name for study in settings.studies], "grid: study")
        for name in grid.variants:
            _one_of(name, settings.variants_by_name, f"grid of {grid.study}: variants")
        defences = [Defence.parse(text) for text in grid.defences]
        if grid.answers and any(defence.kind != "none" for defence in defences):
            raise SettingsError(f"grid of {grid.study}: answers are studied undefended", remedy='leave "none" alone')
    return settings


def setups(settings: StudySettings, patterns: tuple[str, ...] = ()) -> list[Setup]:
    """The wanted cells, each once, in the order of the file. `patterns` select names (* and ?)."""
    wanted: dict[Cell, None] = {}
    for grid in settings.grid:
        axes = (grid.targets, grid.blocks, grid.defences, grid.variants)
        for target, blocks, defence, variant in itertools.product(*axes):
            wanted[Cell(grid.study, variant, blocks, defence, target, grid.answers, grid.num_prompts)] = None
    chosen = [cell for cell in wanted if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if patterns and not chosen:
        raise SettingsError(f"no cell is named {' or '.join(patterns)}", remedy="see make study ARGS=--list")
    return [Setup(settings.recipe, settings.variants_by_name[cell.variant], cell) for cell in chosen]


def _one_of(name: str, known: Mapping[str, object] | list[str], place: str) -> None:
    if name not in known:
        raise SettingsError(f"{place} {name!r} is not known", remedy=f"known are {', '.join(sorted(known))}")
