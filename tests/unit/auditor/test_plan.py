"""Plans: built in, from a file, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditor.channels import FAMILIES
from auditor.plan import BUILT_IN, CalibrationSettings, Plan, scope_line
from auditor.plan.files import load_plan, render_plan
from splitwire.errors import SettingsError


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_rendered_plan_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(render_plan(BUILT_IN[name]))
    assert load_plan(file) == BUILT_IN[name]
    assert load_plan(file).hash == BUILT_IN[name].hash


def test_no_plan_means_the_default_one() -> None:
    assert load_plan(None) == load_plan("default") == Plan()


def test_the_quick_plan_is_marked_and_has_one_arm() -> None:
    quick = load_plan("quick")
    assert quick.underpowered
    assert (len(quick.probe.probes), quick.probe.restarts) == (1, 1)


def test_the_default_plan_has_nine_arms_and_the_published_training() -> None:
    probe = Plan().probe
    assert len(probe.probes) * probe.restarts == 9
    assert (probe.epochs, probe.batch_rows, probe.learning_rate) == (20, 512, 1e-3)


def test_the_scope_of_the_default_plan_is_all_nine_families() -> None:
    assert set(Plan().scope) == set(FAMILIES)
    assert len(FAMILIES) == 9
    assert "active perturbation" in scope_line(Plan())
    narrow = replace(Plan(), calibration=CalibrationSettings(modes=("coordinate",)))
    assert scope_line(narrow).endswith("leaks of the coordinate mode")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nmae = 'x'", "name"),
        ("attacks = ['guess']", "guess"),
        ("families = ['sideways']", "sideways"),
        ("partition = 'some'", "partition"),
        ("[split]\ntrain_ratio = 0.8\nselect_ratio = 0.2", "no document is left for test"),
        ("[split]\ntrain_ratio = 1.5", "train_ratio"),
        ("[split]\nseed = -1", "split.seed"),
        ("[statistics]\nrepetitions = 100_000_000_000", "statistics.repetitions"),
        ("[probe]\nepochs = 0", "epochs"),
        ("[probe]\nprobes = []", "probe.probes"),
        ("[probe", "not TOML"),
        ("name = " + "[" * 5000, "not TOML"),
        ("name = 1" + "0" * 5000, "not TOML"),
        ("attacks = []", "attacks is empty"),
        ("attacks = ['row_norm', 'row_norm']", "attacks names an entry twice"),
        ("scope = ['forward_only', 'forward_only']", "scope names an entry twice"),
        ("compute_modes = ['dream']", "compute_modes"),
        ("[ceilings]\ntoken_pp = -1.0", "ceilings.token_pp"),
        ("[ceilings]\ntoken_pp = 101", "ceilings.token_pp"),
        ("[ceilings]\npartition_auc_ratio = 0.4", "ceilings.partition_auc_ratio"),
        ("[ceilings]\nmembership_auc_ratio = 1.0", "ceilings.membership_auc_ratio"),
        ("[ceilings]\nexact_support_frames = -1", "ceilings.exact_support_frames"),
        ("[ceilings]\nproperty_auc_ratio = nan", "ceilings.property_auc_ratio"),
        ("[ceilings]\npartition = 0.5", "ceilings.partition"),
        ("[statistics]\nalpha = 0.21", "statistics.alpha"),
        ("[statistics]\nalpha = 1e-300", "too few for an alpha of 1e-300"),
        ("[statistics]\nrepetitions = 99", "give 100 or more"),
        ("[statistics]\npower_ratio = 0.4", "statistics.power_ratio"),
        ("[statistics]\nmin_documents = 19", "statistics.min_documents"),
        ("[calibration]\npower_ratio = 0.01", "calibration.power_ratio"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_plan(file)
    assert named in str(error.value)


def test_a_missing_plan_names_the_ones_that_are_built_in(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"default, quick"):
        load_plan(tmp_path / "none.toml")
