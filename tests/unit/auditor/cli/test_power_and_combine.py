"""`auditor power` before an audit, and `auditor combine` after several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli import app
from auditor.combine import combine_audits
from auditor.plan import Plan
from auditor.results import SCHEMA, Check, Result, plain
from auditor.statistics.meta import random_effects
from auditor.verdict import Verdict
from splitwire.errors import SettingsError
from splitwire.settings import to_tree

EFFECT = "latent_probe/forward_only/token_top1_effect"


def audit(folder: Path, name: str, value: float, half: float = 0.3, **changes: Any) -> Path:
    check = Check("token_top1_effect", "pp", 1.0, value, value - half, value + half, None, None, "pass")
    gate = replace(check, metric="token_top1_gate", lower=None)
    told = ("token", "all", "", "", "", 1, 1, 1)
    result = Result("latent_probe", "forward_only", *told, (replace(check, **changes), gate), {}, {}, ())
    report = {
        "schema": SCHEMA,
        "verdict": plain(Verdict("pass", (), 0, "")),
        "scope": "",
        "observable": {},
        "plan": {"name": "p", "hash": "a", "underpowered": False, "settings": to_tree(Plan())},
        "versions": {},
        "captured": {"documents_by_split": {}},
        "results": [plain(result)],
        "not_measured": [],
        "bundles": [],
        "notes": [],
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(report))
    return file


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_combine_prints_what_the_library_finds(tmp_path: Path) -> None:
    values = [0.2, 0.9, 0.5]
    files = [audit(tmp_path, str(value), value) for value in values]
    printed = json.loads(invoke("combine", *files, "--json").output)
    expected = random_effects(values, [0.6 / (2 * 1.6448536269514722)] * 3)
    assert printed["subject"] == EFFECT
    assert printed["mean_pp"] == pytest.approx(expected.mean, abs=1e-9)
    assert expected.prediction is not None
    assert printed["intervals_pp"]["prediction"]["upper"] == pytest.approx(expected.prediction.upper, abs=1e-9)
    text = invoke("combine", *files, "--check", "token_top1_effect").output
    for word in ("DerSimonian-Laird", "Hartung-Knapp", "prediction", "tau", "+0.53 pp"):
        assert word in text


def test_a_folder_stands_for_its_result(tmp_path: Path) -> None:
    for number, value in enumerate((0.2, 0.4)):
        folder = tmp_path / str(number)
        folder.mkdir()
        audit(folder, "audit", value)
    assert invoke("combine", tmp_path / "0", tmp_path / "1", "--check", "token_top1_effect").exit_code == 0


def test_two_runs_have_no_prediction_and_other_plans_are_noted(tmp_path: Path) -> None:
    files = [audit(tmp_path, "a", 0.2), audit(tmp_path, "b", 0.4)]
    report = json.loads(files[1].read_text())
    report["plan"]["hash"] = "b"
    files[1].write_text(json.dumps(report))
    printed = json.loads(invoke("combine", *files, "--json").output)
    assert printed["intervals_pp"]["prediction"] is None
    assert "different plans" in printed["notes"][0]
    assert "where another run may lie: needs three runs" in invoke("combine", *files).output


@pytest.mark.parametrize(
    ("readings", "check", "message"),
    [
        ([0.2], None, "at least two"),
        ([0.2, 0.2], None, "give every capture once"),
        ([0.2, 0.4], "token_top1_gate", "with two bounds is not in"),
        ([0.2, None], None, "share no check"),
    ],
)
def test_what_cannot_be_combined_says_why(
    tmp_path: Path, readings: list[float | None], check: str | None, message: str
) -> None:
    files = [
        audit(tmp_path, str(n), value or 0.0, **({} if value is not None else {"lower": None}))
        for n, value in enumerate(readings)
    ]
    with pytest.raises(SettingsError, match=message):
        combine_audits(files, check)


def test_a_choice_is_asked_for_where_several_checks_fit(tmp_path: Path) -> None:
    files = [audit(tmp_path, "a", 0.2), audit(tmp_path, "b", 0.4)]
    for number, file in enumerate(files):
        report = json.loads(file.read_text())
        other = report["results"][0] | {"family": "gradient_only"}
        other["checks"] = [other["checks"][0] | {"value": 0.1, "lower": -0.2, "upper": 0.3 + number}]
        report["results"].append(other)
        file.write_text(json.dumps(report))
    with pytest.raises(SettingsError, match="2 checks fit"):
        combine_audits(files, None)
    assert combine_audits(files, "gradient_only").subject == "latent_probe/gradient_only/token_top1_effect"


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SettingsError, match="schema"):
        combine_audits([tmp_path / "x.json", tmp_path / "x.json"], None)


def test_power_names_what_every_ceiling_needs() -> None:
    printed = json.loads(invoke("power", "--json").output)
    needed = {check["metric"]: check["needed_documents_in_all_count"] for check in printed["checks"]}
    assert needed["partition_auc_ratio"] == 50  # 20 test documents, the fewest that can pass
    assert needed["token_pp"] > 100
    assert needed["membership_tpr_ratio"] > needed["membership_auc_ratio"] > 1000
    assert printed["test_documents_count"] == 40
    assert "membership_tpr_ratio" in invoke("power", "--documents", "5000").output


def test_the_table_of_the_documentation_is_what_the_command_prints() -> None:
    page = (Path(__file__).parents[4] / "docs" / "statistics.md").read_text()
    block = "".join(f"    {line}\n" for line in ["$ auditor power", *invoke("power").output.splitlines()])
    assert block in page


def test_texts_that_are_rebuilt_need_no_split(tmp_path: Path) -> None:
    """All documents are attacked, as many as the plan allows; the default plan allows too few for its own ceiling."""
    plan = tmp_path / "plan.toml"
    plan.write_text("[inversion]\nmax_texts = 400\n")
    printed = [json.loads(invoke("power", "--json", "--plan", name).output)["checks"] for name in ("default", plan)]
    few, many = ({check["metric"]: check for check in checks}["prompt_token_pp"] for checks in printed)
    assert few["documents_count"] == 20
    assert many["documents_count"] == 100
    assert few["detectable"] > many["detectable"]
    assert few["needed_documents_count"] == few["needed_documents_in_all_count"] > 20
    assert "inversion.max_texts = 20" in invoke("power").output
    assert "max_texts" not in invoke("power", "--plan", plan).output


def test_correlated_rows_fewer_rows_and_more_arms_need_more_documents(tmp_path: Path) -> None:
    def token(*arguments: object) -> int:
        return int(json.loads(invoke("power", "--json", *arguments).output)["checks"][0]["needed_documents_count"])

    assert token("--icc", 0.1) > token("--icc", 0.01) > token("--icc", 0)
    assert token("--rows", 8) > token("--rows", 32)
    assert token("--plan", "default") > token("--plan", "quick")


def test_without_decoys_there_is_no_partition_to_power() -> None:
    printed = json.loads(invoke("power", "--json", "--decoys", 0).output)
    assert not any("partition" in check["metric"] for check in printed["checks"])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("--icc", 5), "icc_ratio"), (("--rows", 0), "rows_count"), (("--base", 0), "base_ratio"),
     (("--documents", 0), "documents"), (("--frames", -1), "frames")],
)  # fmt: skip
def test_power_refuses_what_is_out_of_range(arguments: tuple[object, ...], field: str) -> None:
    found = invoke("power", *arguments)
    assert isinstance(found.exception, SettingsError)
    assert field in str(found.exception)
