"""`auditor compare` runs every inversion attack on a bundle from end to end, with parameters that make it short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from auditor.attacks import ATTACKS
from auditor.attacks.inversion.parameters import parameters_of
from auditor.comparing.files import write_comparison
from auditor.comparing.run import Comparison, inversion_attacks
from auditor.plan import InversionSettings, Plan, StatisticsSettings
from auditor.progress import silent
from splitwire.backbone import ModelSettings
from tests.unit.auditor.generated import Generated, write_generation

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT: dict[str, bool | int | float | str] = {
    "num_steps": 2,
    "num_epochs": 1,
    "num_pieces": 10,
    "piece_positions": 8,
    "pieces": 4,
    "piece_tokens": 8,
    "hidden_width": 16,
    "patch_steps": 1,
    "joint_steps": 1,
    "contexts_per_token": 1,
    "writer_epochs": 1,
    "writer_width": 16,
    "max_length": 8,
    "num_features": 16,
    "num_experts": 2,
    "replica_epochs": 1,
    "rank": 2,
    "public_tokens": 256,
    "single_tokens": 32,
    "most_steps": 2,
    "candidates": 2,
    "steps_between_moves": 1,
    "solver_steps": 1,
}


@pytest.fixture(scope="module")
def settings(tiny_model: Callable[[str], Path]) -> ModelSettings:
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


@pytest.fixture(scope="module")
def generation(settings: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    generator = torch.Generator().manual_seed(4)
    texts = torch.randint(0, 256, (6, 8), generator=generator).tolist()
    return write_generation(tmp_path_factory.mktemp("generation"), settings, texts)


def plan_of(name: str) -> Plan:
    """A plan in which this attack is short."""
    known = parameters_of(ATTACKS[name])
    short = {field: value for field, value in SHORT.items() if type(known.get(field)) is type(value)}
    inversion = InversionSettings(max_texts=2, auxiliary_tokens=1024, parameters={name: short} if short else {})
    return Plan(statistics=StatisticsSettings(repetitions=50), inversion=inversion)


def compare(name: str, bundle: Path, key: Path, out: Path) -> Any:
    """The one cell of this attack, after its table was written."""
    plan = plan_of(name)
    compared = Comparison((name,), key=key, plan=plan).run([bundle], out / "parts", silent)
    write_comparison(compared, plan, out, {})
    assert compared.failures == ()
    (cell,) = compared.cells
    return cell


OF_GENERATION = [name for name in inversion_attacks() if ATTACKS[name].question != "training_text"]


@pytest.mark.parametrize("name", OF_GENERATION)
def test_an_attack_on_a_generation_gives_a_cell(name: str, generation: Generated, tmp_path: Path) -> None:
    cell = compare(name, generation.bundle, generation.key, tmp_path)
    assert cell.num_texts == 2
    assert cell.metrics[0].value is not None
    assert f"| {name} |" in (tmp_path / "comparison.md").read_text()


def test_the_model_behind_a_generation_is_named(generation: Generated, settings: ModelSettings, tmp_path: Path) -> None:
    """Right or wrong stands in the table with the error ratio of every candidate."""
    cell = compare("model_identification", generation.bundle, generation.key, tmp_path)
    assert cell.metrics[0].name == "model_named"
    assert settings.source in cell.metrics[0].note
    assert "Models that were named:" in (tmp_path / "comparison.md").read_text()
