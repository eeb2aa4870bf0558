"""Kubernetes manifests and systemd units: valid by their own validators, probed, confined, without a secret."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from splitwire.settings import load_settings
from tln.settings import TlnSettings, check_training
from ucn.settings import UcnSettings, check

ROOT = Path(__file__).parents[3]
K8S = ROOT / "deploy" / "k8s"
SIDES = ("ucn", "trusted")
SETS = (*SIDES, "serve")
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
VERSION = "1.29"


def _resources(name: str) -> list[dict[str, Any]]:
    """Every object of a set, as written."""
    kustomization = yaml.safe_load((K8S / name / "kustomization.yaml").read_text())
    texts = [(K8S / name / file).read_text() for file in kustomization["resources"]]
    return [tree for text in texts for tree in yaml.safe_load_all(text)]


def _pods(name: str) -> list[tuple[str, dict[str, Any]]]:
    found = [tree for tree in _resources(name) if "template" in tree.get("spec", {})]
    return [(tree["metadata"]["name"], tree["spec"]["template"]["spec"]) for tree in found]


@pytest.mark.parametrize("name", SETS)
def test_a_set_builds_and_is_valid(name: str) -> None:
    """Against the schemas of Kubernetes, strictly, so that a misspelt field is an error."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which builds the set, is not installed")
    done = subprocess.run(["kubectl", "kustomize", K8S / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = []
    for tree in yaml.safe_load_all(done.stdout):
        kubernetes_validate.validate(tree, VERSION, strict=True)
        kinds.append(tree["kind"])
    needed = {"NetworkPolicy", "ConfigMap", "Service"} | (
        {"Namespace", "PersistentVolumeClaim"} if name in SIDES else set()
    )
    assert needed <= set(kinds)


@pytest.mark.parametrize("name", SETS)
def test_files_of_a_set_are_all_used(name: str) -> None:
    kustomization = yaml.safe_load((K8S / name / "kustomization.yaml").read_text())
    listed = {*kustomization["resources"], "kustomization.yaml"}
    listed |= {file for part in kustomization["configMapGenerator"] for file in part.get("files", [])}
    assert {path.name for path in (K8S / name).iterdir()} == listed


@pytest.mark.parametrize("name", SETS)
def test_a_pod_may_do_as_little_as_it_can(name: str) -> None:
    """Restricted pods: no root, no writable root, no capability, no token, pinned images, bounded memory."""
    for pod_name, pod in _pods(name):
        assert pod["automountServiceAccountToken"] is False, pod_name
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert re.search(r":\d+\.\d+\.\d+$", container["image"])
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", SETS)
def test_servers_are_probed(name: str) -> None:
    for tree in _resources(name):
        if tree["kind"] in ("StatefulSet", "Deployment"):
            for container in tree["spec"]["template"]["spec"]["containers"]:
                assert "readinessProbe" in container, container["name"]


@pytest.mark.parametrize("name", SETS)
def test_keys_come_from_secrets_that_are_not_in_the_set(name: str) -> None:
    """Mounted read-only, unreadable to others; the authority's key is in none of them."""
    assert all(tree["kind"] != "Secret" for tree in _resources(name))
    for _, pod in _pods(name):
        secrets = {volume["name"] for volume in pod["volumes"] if "secret" in volume}
        assert all(v["secret"]["defaultMode"] == 0o440 for v in pod["volumes"] if "secret" in v)
        for container in pod["containers"]:
            mounts = [mount for mount in container["volumeMounts"] if mount["name"] in secrets]
            assert all(mount["readOnly"] for mount in mounts)


@pytest.mark.parametrize("name", SIDES)
def test_nothing_may_talk_unless_a_policy_says_so(name: str) -> None:
    policies = {tree["metadata"]["name"]: tree["spec"] for tree in _resources(name) if tree["kind"] == "NetworkPolicy"}
    assert policies["nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize(("name", "policy_name"), [("trusted", "tln-to-tap"), ("serve", "serve-to-tap")])
def test_the_trusted_node_reaches_the_tap_and_names_only(name: str, policy_name: str) -> None:
    policy = next(t for t in _resources(name) if t["metadata"]["name"] == policy_name)["spec"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {7432, 53}
    assert all("ipBlock" not in peer for rule in policy["egress"] for peer in rule["to"])


def test_settings_in_the_sets_are_acceptable() -> None:
    untrusted = load_settings(UcnSettings, program="ucn", file=K8S / "ucn/ucn.toml", environment={})
    check(untrusted)
    overrides = [("train.out", "run"), ("record.folder", "truth"), ("record.wire", "false")]
    trusted = load_settings(
        TlnSettings, program="tln", file=K8S / "trusted/tln.toml", environment={}, overrides=overrides
    )
    check_training(trusted)
    assert trusted.model == untrusted.model


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    """With its programs put where they are here, since systemd looks for them."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    names = {path.name: path.read_text() for path in UNITS}
    for name, text in names.items():
        placed = text.replace("/opt/splitwire/.venv/bin", str(Path(sys.executable).parent))
        (tmp_path / name).write_text(placed.replace("/opt/splitwire", str(ROOT)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit.name], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "splitwire" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_confined(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    for line in (
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "CapabilityBoundingSet=",
        "UMask=0077",
    ):
        assert line in lines
    assert "User=root" not in lines
    assert any(line.startswith("TimeoutStopSec=") for line in lines)
