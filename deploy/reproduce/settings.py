"""What is reproduced: texts, cuts, budgets, and which cells. A TOML file, by default reproduce.toml beside this file.

Everything but the grid is the recipe of a cell; its hash is in every result, and results of another recipe are refused
rather than mixed. The grid only says which cells are wanted, so it may grow between runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from auditor.plan import ProbeName
from splitwire.errors import SettingsError
from splitwire.settings import load_settings, settings_hash
from tln.presets import preset_file

HERE = Path(__file__).resolve().parent
DEFAULT_FILE = HERE / "reproduce.toml"


@dataclass(frozen=True)
class Corpus:
    """A private text and the public one that goes with it. Relative paths are taken from the TOML file's folder."""

    name: str
    path: str
    public_path: str


@dataclass(frozen=True)
class Depth:
    """A cut: layer numbers, or fractions of the depth, which both nodes resolve alike."""

    name: str
    first_layer: int | float
    last_layer: int | float


@dataclass(frozen=True)
class Variant:
    """Changes to a preset, as settings of the trusted node in the form key=value. They win over those of the recipe."""

    name: str
    pairs: tuple[str, ...]


Entry = TypeVar("Entry", Corpus, Depth, Variant)


@dataclass(frozen=True)
class Grid:
    """Every combination of these is a cell."""

    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    corpora: tuple[str, ...]
    depths: tuple[str, ...]
    widths: tuple[int, ...]
    steps: tuple[int, ...]
    variants: tuple[str, ...] = ("",)
    """Names of variants; an empty one is the preset as it is."""


@dataclass(frozen=True)
class AuditBudget:
    """What a cell's audit spends. Every probe has one arm, its shuffled twin and its planted control."""

    epochs: int = 6
    """Passes of each probe over the train split."""
    probes: tuple[ProbeName, ...] = ("coordinate_plus_invariants",)
    """Classes of probes."""
    max_classes: int = 512
    """Most frequent training tokens that get a class; rows of other tokens count as wrong."""
    max_frames: int = 1024
    """Frames of one view of the token probes."""
    repetitions: int = 2000
    """Bootstrap repetitions."""


@dataclass(frozen=True)
class Recipe:
    """What every cell has in common."""

    source: str = "smollm2-135m-instruct"
    """The model: a name, a folder or a hub id."""
    threads: int = 2
    """Threads of each program."""
    corpora: tuple[Corpus, ...] = ()
    depths: tuple[Depth, ...] = ()
    variants: tuple[Variant, ...] = ()
    pairs: tuple[str, ...] = ()
    """Settings of the trusted node over those of the preset, as key=value."""
    mechanism_pairs: tuple[str, ...] = ()
    """More of them, for presets that have decoys."""
    audit: AuditBudget = field(default_factory=AuditBudget)

    @property
    def hash(self) -> str:
        """SHA-256 hex of the canonical form; in every result."""
        return settings_hash(self)


@dataclass(frozen=True)
class ReproduceSettings:
    """The recipe and which cells are wanted, in this order."""

    recipe: Recipe = field(default_factory=Recipe)
    grid: tuple[Grid, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One run and its audit. `seed` names an independent run: its keys are fresh, and it orders the audit's split."""

    preset: str
    corpus: str
    depth: str
    width: int
    steps: int
    seed: int
    variant: str = ""

    @property
    def defence(self) -> str:
        """Preset and variant, as the tables name them."""
        return f"{self.preset}+{self.variant}" if self.variant else self.preset

    @property
    def name(self) -> str:
        """The name of its result file."""
        return f"{self.defence}.{self.corpus}.{self.depth}.w{self.width}.n{self.steps}.s{self.seed}"


def load(file: Path) -> ReproduceSettings:
    """The settings of a TOML file; SettingsError for names that no entry has."""
    settings = load_settings(ReproduceSettings, program="reproduce", file=file, environment={})
    for cell in cells(settings):
        preset_file(cell.preset)
        find(settings.recipe.corpora, cell.corpus, "corpora")
        find(settings.recipe.depths, cell.depth, "depths")
        if cell.variant:
            find(settings.recipe.variants, cell.variant, "variants")
    return settings


def cells(settings: ReproduceSettings, patterns: tuple[str, ...] = ()) -> list[Cell]:
    """The wanted cells, each once: the first seed of everything comes first. `patterns` select names (* and ?)."""
    wanted: dict[Cell, None] = {}
    for grid in settings.grid:
        axes = (grid.seeds, grid.corpora, grid.depths, grid.widths, grid.steps, grid.presets, grid.variants)
        for seed, corpus, depth, width, steps, preset, variant in itertools.product(*axes):
            wanted[Cell(preset, corpus, depth, width, steps, seed, variant)] = None
    chosen = [cell for cell in wanted if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if patterns and not chosen:
        raise SettingsError(f"no cell is named {' or '.join(patterns)}", remedy="see make reproduce ARGS=--list")
    return chosen


def find(entries: tuple[Entry, ...], name: str, where: str) -> Entry:
    """The entry of that name."""
    for entry in entries:
        if entry.name == name:
            return entry
    raise SettingsError(f"grid names {name!r}, which recipe.{where} lacks", remedy=f"add it to [[recipe.{where}]]")
