"""Which public model made the rows of a bundle: named among candidates, and used by replication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from auditor.audit import run_audit
from auditor.channels import FORWARD_ONLY
from auditor.comparing.run import Comparison
from auditor.plan import InversionSettings, Plan
from auditor.progress import silent
from auditor.scorers.model import NOT_SELECTIVE
from splitwire.backbone import ModelSettings
from splitwire.errors import ModelError
from tests.unit.auditor.generated import Generated, write_generation

pytestmark = pytest.mark.usefixtures("one_thread")

HOW: dict[str, bool | int | float | str] = {
    "learning_rate": 5e-3,
    "batch_rows": 64,
    "num_epochs": 6,
    "piece_positions": 16,
    "num_pieces": 60,
}
REPLICA: dict[str, bool | int | float | str] = {"num_steps": 1, "replica_epochs": 1, "rank": 2}


@dataclass(frozen=True)
class Case:
    """A bundle of the first model, and another model of the same width."""

    generated: Generated
    right: str
    wrong: str

    def plan(self, candidates: str) -> Plan:
        """Named by name, and used by replication."""
        parameters = {"model_identification": {**HOW, "candidates": candidates}, "replication": REPLICA}
        return Plan(
            attacks=("model_identification",),
            families=(FORWARD_ONLY,),
            scope=(FORWARD_ONLY,),
            inversion=InversionSettings(auxiliary_tokens=3000, parameters=parameters),
        )


@pytest.fixture(scope="module")
def case(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)
    letters = np.frombuffer(b"The committee will meet again in the spring to settle what is left. " * 4, np.uint8)
    texts = [letters[start : start + 24].astype(int).tolist() for start in range(12)]
    generated = write_generation(tmp_path_factory.mktemp("generation"), model, texts)
    return Case(generated, model.source, str(tiny_model("gpt2")))


def test_the_right_one_of_two_is_named_and_measures_no_family(case: Case) -> None:
    """The control is named as well; without a check the family stays unmeasured and the audit open. The channels of a
    random model are all alike, so that the twin is named too, which the result says.
    """
    report = run_audit([case.generated.bundle], key=case.generated.key, plan=case.plan(f"{case.wrong}, {case.right}"))
    (result,) = report["results"]
    assert result["details"]["chosen"] == case.right
    assert result["details"]["is_right"]
    assert result["checks"] == []
    assert result["controls"][0]["found"]
    assert result["twin"]["named_ratio"] == 1.0
    assert result["notes"][1] == NOT_SELECTIVE
    assert result["baseline"] == {"chance_ratio": pytest.approx(1 / 3)}
    assert report["verdict"]["state"] == "inconclusive"
    assert any(reason["subject"] == FORWARD_ONLY for reason in report["verdict"]["reasons"])


def test_none_is_right_where_it_is_none_of_them(case: Case) -> None:
    (result,) = run_audit([case.generated.bundle], key=case.generated.key, plan=case.plan(case.wrong))["results"]
    assert result["details"]["chosen"] == "none of them"
    assert result["details"]["is_right"]
    assert not result["controls"][0]["found"]


def test_replication_starts_from_the_choice(case: Case, tmp_path: Path) -> None:
    """Where the plan names no base; where nothing is chosen it says so, and a base that is named counts alone."""
    plans = {
        "right": case.plan(f"{case.wrong}, {case.right}"),
        "none": case.plan(case.wrong),
        "named": replace(
            case.plan(case.wrong),
            inversion=replace(
                case.plan(case.wrong).inversion,
                parameters={
                    **case.plan(case.wrong).inversion.parameters,
                    "replication": {**REPLICA, "base": case.right},
                },
            ),
        ),
    }
    found = {}
    for name, plan in plans.items():
        comparison = Comparison(("replication",), key=case.generated.key, plan=plan)
        found[name] = comparison.run([case.generated.bundle], tmp_path / name, silent)
    (right,), (named,) = found["right"].cells, found["named"].cells
    assert right.told["attack_base_distance"] == named.told["attack_base_distance"] < 1e-6
    assert "chooses none of its candidates" in found["none"].failures[0].reason


def test_a_candidate_that_is_nowhere_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        run_audit([case.generated.bundle], key=case.generated.key, plan=case.plan(str(tmp_path / "nowhere")))
