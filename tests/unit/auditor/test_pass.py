"""The instrument can say pass, and says fail of the same system with a leak in it.

Everything is given that a pass needs: a recording of the tap, its truth, the public model, a naked bundle and a
calibration of the plan. Six families can be seen in it, since no document is held out, nothing was perturbed and the
node's state was not recorded; all six are measured. 1,700 documents are what the three properties of timing_metadata
take; the tokens need fewer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli import app
from auditor.plan import CalibrationSettings, Plan, ProbeSettings, ResponseSettings, SplitSettings, StatisticsSettings
from auditor.plan.files import render_plan
from splitwire.backbone import ModelSettings, identity
from splitwire.sealing import write_audit_keys
from splitwire.v1 import stack_pb2

from .tapped import Tapped, write_bundle

SEEN = (
    "forward_only",
    "gradient_only",
    "joint_forward_gradient",
    "accumulated_history",
    "timing_metadata",
    "response_side",
)
PLAN = Plan(
    name="six families",
    attacks=("gradient_support", "row_norm", "linkage", "linear_probe", "traffic_profile", "model_completion"),
    families=SEEN,
    scope=SEEN,
    statistics=StatisticsSettings(repetitions=300),
    split=SplitSettings(train_ratio=0.3),
    probe=ProbeSettings(control_coverage_ratio=0.8),
    calibration=CalibrationSettings(coverages=(1.0,), modes=("coordinate",), repetitions=1, max_frames=0),
)
CLEAN = Tapped(frames=1700, documents=1700, rows=10, width=16, vocabulary=250)
LEAKY = replace(CLEAN, frames=600, documents=600)
NAKED = replace(CLEAN, frames=600, documents=300, leak=6.0, has_decoys=False, seed=5)
LEAKS = {
    "linear_probe/forward_only/token_top1_effect": {"leak": 0.6},
    "traffic_profile/timing_metadata/real_rows_property_auc": {"loss_delay": lambda _document, real: 300.0 * real},
    "gradient_support/gradient_only/exact_support_frames": {"decoys_zero": True},
}


@dataclass(frozen=True)
class Desk:
    """A folder with keys, plan, naked bundle and the calibration of the clean bundle."""

    folder: Path
    model: stack_pb2.ModelIdentity

    def write(self, name: str, run: Tapped) -> Path:
        """A bundle of that run of the model."""
        return write_bundle(self.folder / name, replace(run, model=self.model), self.folder / "keys")

    def audit(self, bundle: Path, out: str) -> tuple[int, dict[str, Any]]:
        """Exit code and result of `auditor audit` with all that a pass needs."""
        options = ("--calibration", self.folder / "calibration", "--control", self.folder / "naked")
        result = self.run("audit", bundle, *options, "--out", self.folder / out)
        report: dict[str, Any] = json.loads((self.folder / out / "audit.json").read_text())
        return result, report

    def run(self, *arguments: str | Path) -> int:
        """Exit code of `auditor` with the keys and the plan of this folder."""
        keys = self.folder / "keys"
        common = ("--key", keys / "audit.key", "--trust", keys / "trust.json", "--plan", self.folder / "plan.toml")
        return CliRunner().invoke(app, [str(argument) for argument in (*arguments, *common)]).exit_code


@pytest.fixture(scope="module")
def desk(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder, source = tmp_path_factory.mktemp("desk"), str(tiny_model("llama"))
    write_audit_keys(folder / "keys")
    (folder / "plan.toml").write_text(render_plan(replace(PLAN, response=ResponseSettings(source=source))))
    made = Desk(folder, identity(ModelSettings(source=source, first_layer=2, last_layer=4)))
    for name, run in (("clean", CLEAN), ("naked", NAKED)):
        made.write(name, run)
    assert made.run("calibrate", folder / "clean", "--out", folder / "calibration") == 0
    return made


def test_a_clean_system_passes_with_everything_that_a_pass_needs(desk: Desk) -> None:
    code, report = desk.audit(desk.folder / "clean", "clean-audit")
    assert [check["reasons"] for result in report["results"] for check in result["checks"] if check["reasons"]] == []
    assert (code, report["verdict"]["state"], report["verdict"]["reasons"]) == (0, "pass", [])
    assert set(report["observable"]) == {result["family"] for result in report["results"]} == set(SEEN)


@pytest.mark.parametrize("subject", LEAKS)
def test_the_same_system_with_a_leak_fails(desk: Desk, subject: str) -> None:
    name = subject.split("/", maxsplit=1)[0]
    bundle = desk.write(name, replace(LEAKY, **LEAKS[subject]))
    code, report = desk.audit(bundle, f"{name}-audit")
    assert (code, report["verdict"]["state"]) == (1, "fail")
    assert subject in {reason["subject"] for reason in report["verdict"]["reasons"] if reason["kind"] == "leak"}
