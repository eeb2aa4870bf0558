"""One cell: rows, an attack on them, and its scores with bounds clustered on the prompt.

Times are of the processor, which a busy machine leaves alone, beside those of the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import splitwire
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parameters import parameters_of
from auditor.plan import InversionSettings, Plan
from auditor.progress import Progress
from auditor.public_model import PublicModel
from auditor.public_text import PublicText, load_public_text
from auditor.text_metrics.report import Pair, measure
from deploy.study.prompts import Prompts, load_prompts
from deploy.study.settings import Cell, Recipe, Setup
from deploy.study.victims import Victims, make_victims, tuned_head
from splitwire.backbone import HeadModel, ModelSettings, load_config, load_tokenizer

SCHEMA = "splitwire.study/1"


@dataclass(frozen=True)
class Bench:
    """The model, the prompts and the public text that all cells share; loaded when a cell needs them."""

    recipe: Recipe
    prompts_file: Path
    most_prompts: int
    """The most that any cell wants."""

    @cached_property
    def tokenizer(self) -> Any:
        """The model's."""
        return load_tokenizer(ModelSettings(source=self.recipe.source))

    @cached_property
    def prompts(self) -> Prompts:
        """Victims are the first of them, and a tuned target was trained on the last ones."""
        return load_prompts(self.prompts_file, self.tokenizer, self.recipe, self.most_prompts + 1)

    @cached_property
    def public(self) -> PublicText:
        """What attacks learn from."""
        return load_public_text(InversionSettings(auxiliary_tokens=self.recipe.auxiliary_tokens), self.tokenizer)

    def model(self, cell: Cell) -> PublicModel:
        """The public model, cut where the cell says."""
        num_layers = int(load_config(ModelSettings(source=self.recipe.source)).num_hidden_layers)
        tail_layers = cell.blocks if cell.answers else self.recipe.tail_layers
        last_layer = max(num_layers - tail_layers, cell.blocks + 1)
        return PublicModel(ModelSettings(source=self.recipe.source, first_layer=cell.blocks, last_layer=last_layer))

    def victims(self, cell: Cell, model: PublicModel) -> Victims:
        """The cell's texts."""
        return make_victims(cell, self.recipe, self.prompts, model, self._head(cell, model), self.public)

    def _head(self, cell: Cell, model: PublicModel) -> HeadModel:
        if cell.target == "public":
            return model.head
        others = self.prompts.tokens[self.most_prompts :]
        return tuned_head(model, others[-self.recipe.tuned_steps :], self.recipe)


def run_cell(setup: Setup, bench: Bench, progress: Progress) -> dict[str, Any]:
    """The result of the cell, as plain values."""
    cell, attack = setup.cell, setup.attack
    model = bench.model(cell)
    victims = bench.victims(cell, model)
    view = victims.view(attack, model, bench.public, setup.recipe.seed)
    _ = model.middle, model.tail  # loaded before the clock runs
    load = os.getloadavg()[0]
    began, began_cpu = time.monotonic(), time.process_time()
    recovered = attack.run(view, InversionSettings(), progress)
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - began_cpu
    truths = victims.truths(attack, answers=cell.answers)
    pairs = [
        Pair(np.asarray(guess.tokens, dtype=np.int64), true, number, text.num_prompt)
        for number, (guess, true, text) in enumerate(zip(recovered, truths, victims.texts, strict=True))
    ]
    return {
        "schema": SCHEMA,
        "software_version": splitwire.__version__,
        "setup_hash": setup.hash,
        "cell": asdict(cell),
        "attack": attack.name,
        "parameters": parameters_of(attack),
        "replaced": setup.variant.parameters,
        "prompts": {"name": bench.prompts.name, "sha256": bench.prompts.digest},
        "num_positions": sum(len(text.forward) for text in victims.texts),
        "metrics": [asdict(found) for found in measure(pairs, bench.tokenizer, Plan())],
        "told": _told(recovered),
        "seconds": {
            "all": seconds,
            "cpu": cpu_seconds,
            "fit": recovered[0].details.get("fit_seconds"),
            "by_text": [guess.seconds for guess in recovered],
        },
        "machine": {"threads": torch.get_num_threads(), "load_before": load},
    }


def _told(recovered: Sequence[Recovered]) -> dict[str, float]:
    """The mean over texts of each number that the attack tells of them."""
    values: dict[str, list[float]] = {}
    for guess in recovered:
        for name, value in guess.details.items():
            if isinstance(value, int | float) and not name.endswith("seconds"):
                values.setdefault(name, []).append(float(value))
    return {name: float(np.mean(numbers)) for name, numbers in values.items() if np.isfinite(numbers).all()}
