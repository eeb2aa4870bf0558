"""What an audit tells Prometheus: the numbers of its result, from a file that a watch shows too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from auditor.audit import run_audit
from auditor.plan import Plan, StatisticsSettings
from auditor.report.metrics import registry_of, write_metrics
from auditor.watch.metrics import WatchMetrics
from splitwire.errors import RecordingError

GATE = {"metric": "token_top1_gate", "value": 4.5, "floor": 3.0, "ceiling": 1.0, "state": "fail"}
AUC = {"metric": "partition_auc", "value": 0.91, "floor": 0.5, "ceiling": 0.55, "state": "fail"}
LINKAGE = {"metric": "linkage_auc", "value": None, "floor": 0.5, "ceiling": 0.55, "state": "inconclusive"}


def _report(state: str = "fail", *checks: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": {"state": state},
        "results": [{"attack": "deep_probe", "family": "forward_only", "checks": list(checks or (GATE, AUC, LINKAGE))}],
    }


def test_every_number_of_the_result_has_its_series() -> None:
    """A value that is not known has none, rather than a zero that reads like a pass."""
    registry = registry_of(_report(), 1700.0)
    labels = {"attack": "deep_probe", "family": "forward_only"}
    expected = {"gate_pp": 4.5, "floor_pp": 3.0, "gate_ceiling_pp": 1.0, "partition_auc_ratio": 0.91}
    for name, value in expected.items():
        assert registry.get_sample_value(f"auditor_{name}", labels) == value
    assert registry.get_sample_value("auditor_linkage_auc_ratio", labels) is None
    assert registry.get_sample_value("auditor_last_run_timestamp_seconds") == 1700.0
    assert registry.get_sample_value("auditor_verdict", {"state": "fail"}) == 1
    assert registry.get_sample_value("auditor_verdict", {"state": "pass"}) == 0
    assert registry.get_sample_value("auditor_checks", {"state": "fail"}) == 2


def test_a_watch_shows_the_newest_file_and_nothing_of_an_older_one(tmp_path: Path) -> None:
    """The file may come later; series that are gone from it are gone from the watch; each family is there once."""
    file = tmp_path / "audit.prom"
    watch = WatchMetrics(file)
    assert "auditor_verdict" not in generate_latest(watch.registry).decode()
    write_metrics(_report(), file)
    first = generate_latest(watch.registry).decode()
    assert 'auditor_gate_pp{attack="deep_probe",family="forward_only"} 4.5' in first
    assert 'auditor_verdict{state="fail"} 1.0' in first
    assert first.count("# TYPE auditor_gate_pp") == 1
    write_metrics(_report("pass", AUC), file)
    second = generate_latest(watch.registry).decode()
    assert 'auditor_gate_pp{attack="deep_probe"' not in second
    assert 'auditor_verdict{state="pass"} 1.0' in second


@pytest.mark.parametrize("text", ["auditor_verdict{state=", "not metrics at all", "\x00"])
def test_a_damaged_file_takes_nothing_of_the_watch_away(tmp_path: Path, text: str) -> None:
    file = tmp_path / "audit.prom"
    file.write_text(text)
    assert "auditor_watch_backlog_bytes" in generate_latest(WatchMetrics(file).registry).decode()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RecordingError, match="--metrics-file"):
        write_metrics(_report(), tmp_path / "taken" / "audit.prom")


def test_a_real_result_can_be_shown(make_run: Callable[..., Any]) -> None:
    """The names of the checks are those that the scorers give."""
    plan = Plan(name="m", attacks=("gradient_support", "row_norm"), statistics=StatisticsSettings(repetitions=100))
    run = make_run(frames=40, gradient="open")
    shown = generate_latest(registry_of(run_audit([run.bundle], key=run.key, plan=plan), 1.0)).decode()
    assert 'auditor_verdict{state="fail"} 1.0' in shown
    assert 'auditor_partition_auc_ratio{attack="row_norm"' in shown
