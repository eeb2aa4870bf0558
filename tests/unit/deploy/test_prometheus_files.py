"""Rules and dashboards speak of metrics that exist, and the rules do what their tests say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from auditor.tap.metrics import TapMetrics
from splitwire import metrics

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
BUILT_IN = {"up", "process_resident_memory_bytes"}
NAME = re.compile(r"\b((?:splitwire|auditor|ucn|tln|grpc|process)[_:][a-z0-9_:]+)")
LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)|\{[^}]*\}|\"[^\"]*\"")
NEEDED = {
    "LeakFound", "GateAboveThreshold", "AuditorSilent", "TapDropsFrames", "CertificateExpires", "UcnUnreachable",
    "UtilityGateBroken",
}  # fmt: skip


def _groups(name: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load((RULES / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDS = {rule["record"] for rule in _groups("records.yml")}


def _known() -> set[str]:
    names = set(BUILT_IN) | RECORDS
    for metric in metrics.ALL:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    for family in TapMetrics().registry.collect():
        names |= {family.name, *(sample.name for sample in family.samples)}
    return names


def _expressions() -> Iterator[tuple[str, str]]:
    for file in ("records.yml", "alerts.yml"):
        for rule in _groups(file):
            yield f"{file} {rule.get('record', rule.get('alert'))}", rule["expr"]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.name} {panel['title']}", target["expr"]


@pytest.mark.parametrize(("where", "expression"), [pytest.param(*item, id=item[0]) for item in _expressions()])
def test_every_metric_of_a_query_exists(where: str, expression: str) -> None:
    used = set(NAME.findall(LABEL_LIST.sub(" ", expression))) | ({"up"} & set(re.findall(r"\bup\b", expression)))
    assert used, f"{where} reads no metric"
    assert used - _known() == set()


def test_every_alert_says_what_to_do() -> None:
    alerts = {rule["alert"]: rule for rule in _groups("alerts.yml")}
    assert alerts.keys() >= NEEDED
    for rule in alerts.values():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "action"}


def test_every_alert_is_seen_firing_and_silent_by_a_test() -> None:
    """In the file that promtool runs."""
    tests = yaml.safe_load((RULES / "alerts.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in _groups("alerts.yml")}
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} >= NEEDED


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "records.yml", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
)
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(["promtool", *words], cwd=RULES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_untrusted_node_is_pulled_over_mutual_tls_and_cannot_speak_for_the_auditor() -> None:
    """The monitor's certificate is shown; series of the trusted side are dropped from what the node says."""
    jobs = {job["job_name"]: job for job in yaml.safe_load((RULES / "prometheus.yml").read_text())["scrape_configs"]}
    assert jobs.keys() == {"ucn", "tln", "serve", "tap", "watch"}
    ucn = jobs["ucn"]
    assert ucn["scheme"] == "https"
    assert ucn["tls_config"].keys() >= {"ca_file", "cert_file", "key_file", "server_name"}
    assert "insecure_skip_verify" not in ucn["tls_config"]
    assert "honor_labels" not in ucn
    (drop,) = ucn["metric_relabel_configs"]
    assert re.fullmatch(drop["regex"], "auditor_verdict")
    assert not re.fullmatch(drop["regex"], "ucn_queue_depth")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_is_whole(path: Path) -> None:
    """Panels do not overlap, and all read from the provisioned data source."""
    tree = json.loads(path.read_text())
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    uid = source["datasources"][0]["uid"]
    cells: set[tuple[int, int]] = set()
    for panel in tree["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & covered, panel["title"]
        assert max(x for x, _ in covered) < 24
        cells |= covered
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {uid}
    assert len({panel["id"] for panel in tree["panels"]}) == len(tree["panels"])


def test_there_are_two_dashboards_as_the_generator_writes_them() -> None:
    assert [path.stem for path in DASHBOARDS] == ["operations", "privacy"]
    done = subprocess.run([sys.executable, ROOT / "tools/generate_dashboards.py", "--check"], check=False)
    assert done.returncode == 0
