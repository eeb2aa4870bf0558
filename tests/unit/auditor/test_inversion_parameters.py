"""A plan's parameters reach the attack that they name, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.attacks import ATTACKS
from auditor.attacks.inversion.nearest_vocabulary import NearestVocabulary
from auditor.attacks.inversion.parameters import configured, parameters_of
from auditor.plan import InversionSettings
from auditor.plan.files import load_plan, render_plan
from splitwire.errors import SettingsError


def _plan(folder: Path, text: str) -> Path:
    file = folder / "plan.toml"
    file.write_text(text)
    return file


def test_parameters_of_a_plan_replace_those_of_the_attack(tmp_path: Path) -> None:
    """They are part of the plan's hash, and a plan that was written out reads the same."""
    section = '[inversion.parameters.nearest_vocabulary]\ndistance = "euclidean"\n'
    plan = load_plan(_plan(tmp_path, section))
    attack = configured(ATTACKS["nearest_vocabulary"], plan.inversion)
    assert attack == NearestVocabulary(distance="euclidean")
    assert parameters_of(attack) == {"candidates": "head", "distance": "euclidean"}
    assert plan.hash != load_plan(None).hash
    assert load_plan(_plan(tmp_path, render_plan(plan))).hash == plan.hash


def test_no_number_of_any_attack_may_be_below_nothing() -> None:
    """A negative count, rate or weight is refused for every attack, not only where somebody thought of it."""
    taken = []
    for name, attack in ATTACKS.items():
        for parameter, value in parameters_of(attack).items():
            if isinstance(value, bool | str):
                continue
            settings = InversionSettings(parameters={name: {parameter: -1}})
            try:
                configured(attack, settings)
            except SettingsError:
                continue
            taken.append(f"{name}.{parameter}")
    assert not taken


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ('[inversion.parameters.nearest_vocabular]\ndistance = "l2"', "there is no such attack"),
        ('[inversion.parameters.nearest_vocabulary]\ndistant = "l2"', "there is no parameter distant"),
        ('[inversion.parameters.nearest_vocabulary]\ndistance = "l2"', "distance is 'l2'"),
        ("[inversion.parameters.nearest_vocabulary]\ndistance = true", "distance is True"),
        ("[inversion.parameters.tag]\nlearning_rate = nan", "learning_rate is nan"),
        ("[inversion.parameters.actinv]\nlearning_rate = inf", "learning_rate is inf"),
        ("[inversion.parameters.actinv]\nnum_steps = 1000000000000", "num_steps is 1000000000000"),
        ("[inversion.parameters.row_norm]\nwidth = 3", "has no parameters"),
    ],
)
def test_what_no_attack_takes_is_refused(tmp_path: Path, section: str, named: str) -> None:
    """When the plan is read, and not hours later."""
    with pytest.raises(SettingsError, match=named):
        load_plan(_plan(tmp_path, section))
