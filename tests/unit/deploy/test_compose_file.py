"""docker-compose.yml: hardened services, loopback ports, no way out for the trusted node, acceptable settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import splitwire
from splitwire.settings import load_settings
from tln.serve.refusals import check_serve
from tln.settings import TlnSettings, check_generation, check_training
from ucn.settings import UcnSettings, check

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docker-compose.yml").read_text()
TREE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = TREE["services"]
ONE_SHOT = {"models", "audit"}
LONG = sorted(SERVICES.keys() - ONE_SHOT)
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?")


@pytest.mark.parametrize("file", ["docker-compose.yml", "deploy/gpu.yml"])
def test_the_file_is_of_the_compose_specification(file: str) -> None:
    """What compose v2 reads. The schema is from the Compose Specification (Apache-2.0, compose-spec/compose-spec)."""
    schema = json.loads((ROOT / "tests" / "vectors" / "compose-spec.json").read_text())
    validator = jsonschema.Draft201909Validator(schema)
    assert [error.message for error in validator.iter_errors(yaml.safe_load((ROOT / file).read_text()))] == []
    wrong = yaml.safe_load((ROOT / file).read_text())
    wrong["services"]["ucn"]["restarts"] = "no"
    assert any("restarts" in error.message for error in validator.iter_errors(wrong))


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_may_do_as_little_as_it_can(name: str) -> None:
    """Read-only root, no capability, an unprivileged user, bounded memory, pids and logs."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert VARIABLE.sub(r"\2", service["user"]) not in ("0:0", "")
    assert "pids_limit" in service
    assert "max-size" in service["logging"]["options"]
    assert "mem_limit" in service or name == "models"
    assert not {"privileged", "cap_add", "network_mode", "pid"} & service.keys()
    assert "docker.sock" not in str(service)


@pytest.mark.parametrize("name", LONG)
def test_a_service_that_stays_is_probed_and_has_time_to_end(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] in ("unless-stopped", "on-failure")
    assert service["stop_grace_period"].endswith("s")


def test_the_untrusted_node_has_longer_to_end_than_its_drain_and_a_step() -> None:
    settings = load_settings(UcnSettings, program="ucn", file=ROOT / "deploy/compose/ucn.toml", environment={})
    check(settings)
    grace = int(SERVICES["ucn"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.drain_seconds + settings.step_grace_seconds
    assert settings.health_listen.startswith("127.0.0.1:")


def test_the_settings_of_both_nodes_are_acceptable_and_cut_the_same_model() -> None:
    file = ROOT / "deploy/compose/tln.toml"
    overrides = [("train.out", "run"), ("record.folder", "truth"), ("record.wire", "false")]
    trusted = load_settings(TlnSettings, program="tln", file=file, environment={}, overrides=overrides)
    untrusted = load_settings(UcnSettings, program="ucn", file=ROOT / "deploy/compose/ucn.toml", environment={})
    check_training(trusted)
    assert trusted.model == untrusted.model
    assert (trusted.connection.address, trusted.connection.server_name) == ("tap:7432", "tap.splitwire")
    assert trusted.train.checkpoint_every > 0


@pytest.mark.parametrize("file", ["deploy/compose/serve.toml", "deploy/k8s/serve/serve.toml"])
def test_the_settings_of_the_server_are_acceptable_and_cut_the_same_model(file: str) -> None:
    """It listens on every address of its container, so it needs a file of API keys."""
    serving = load_settings(TlnSettings, program="tln", file=ROOT / file, environment={})
    check_generation(serving)
    check_serve(serving)
    untrusted = load_settings(UcnSettings, program="ucn", file=ROOT / "deploy/compose/ucn.toml", environment={})
    assert serving.model == untrusted.model
    assert (serving.connection.address, serving.connection.server_name) == ("tap:7432", "tap.splitwire")
    assert Path(serving.serve.api_key_file).name == "api.keys"
    grace = int(SERVICES["serve"]["stop_grace_period"].removesuffix("s"))
    assert grace > serving.serve.drain_seconds


def test_images_carry_the_version_of_the_programs() -> None:
    """In the label and in every tag of ours, so that two hosts can be compared."""
    label = f'org.opencontainers.image.version="{splitwire.__version__}"'
    assert label in (ROOT / "deploy/Dockerfile").read_text()
    tags = re.findall(
        r"splitwire/\w+:([\d.]+)", TEXT + "".join(p.read_text() for p in (ROOT / "deploy/k8s").rglob("*.yaml"))
    )
    assert set(tags) == {splitwire.__version__}


def test_only_the_tap_stands_between_the_nodes() -> None:
    """The trusted node is on a network without a way out, which the untrusted node is not on."""
    assert TREE["networks"]["trusted"] == {"internal": True}
    assert SERVICES["tln"]["networks"] == ["trusted"]
    assert SERVICES["ucn"]["networks"] == ["wire"]
    assert all("wire" not in SERVICES[name]["networks"] for name in ("serve", "watch", "audit"))
    (option,) = TREE["networks"]["screens"]["driver_opts"].items()
    assert option == ("com.docker.network.bridge.enable_ip_masquerade", "false")
    assert set(SERVICES["tap"]["networks"]) == {"trusted", "wire"}


def test_ports_are_on_loopback_unless_env_says_otherwise() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 6
    for port in published:
        assert VARIABLE.sub(lambda found: found[2] or "", port).startswith("127.0.0.1:"), port


def test_the_image_has_a_folder_for_every_volume_that_is_written() -> None:
    """A new volume takes its mode from there, so that whoever owns the keys can write it."""
    made = re.search(r"install -d -m 1777 (.*)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert made is not None
    own = [service for service in SERVICES.values() if "splitwire" in service["image"]]
    volumes = [volume for service in own for volume in service["volumes"] if isinstance(volume, str)]
    assert {volume.split(":")[1] for volume in volumes} == set(made[1].split())


def test_keys_are_mounted_read_only_and_where_they_belong() -> None:
    """The key that opens the truth goes to who audits; the authority's key goes nowhere."""
    holders: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            if isinstance(volume, dict) and "PROMETHEUS_DATA" not in volume["source"]:
                assert volume["read_only"] is True, (name, volume)
                holders.setdefault(VARIABLE.sub(r"\1", volume["source"]), set()).add(name)
    assert holders["AUDIT_KEYS}/audit.key"] == {"watch"}
    assert holders["AUDIT_KEYS}"] == {"audit"}
    assert holders["AUDIT_KEYS}/audit.pub"] == {"tln"}
    assert holders["PKI}/tln"] == {"tln", "serve"}
    assert holders["API_KEYS}"] == {"serve"}
    assert holders["PKI}/tap"] == {"tap"}
    assert not any("/ca" in source for source in holders)


def test_every_variable_has_a_default_and_the_main_ones_are_in_the_example() -> None:
    """So either host can start its profile without the other's values."""
    used = dict(VARIABLE.findall(TEXT))
    used_gpu = dict(VARIABLE.findall((ROOT / "deploy/gpu.yml").read_text()))
    assert all("${" + name + ":-" in TEXT for name in used)
    example = (ROOT / ".env.example").read_text()
    assert set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE)) <= used.keys() | used_gpu.keys()
    for name in ("UCN_ADDRESS", "UCN_METRICS_ADDRESS", "UCN_LISTEN", "SPLITWIRE_UID", "PKI", "AUDIT_KEYS", "API_KEYS"):
        assert re.search(rf"^#?{name}=", example, re.MULTILINE), name


def test_the_gpu_file_reserves_devices_for_both_nodes() -> None:
    services = yaml.safe_load((ROOT / "deploy/gpu.yml").read_text())["services"]
    assert services.keys() == {"ucn", "tln"}
    for service in services.values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert device["count"] == "all" or isinstance(device["count"], int)


@pytest.mark.parametrize("files", [("docker-compose.yml",), ("docker-compose.yml", "deploy/gpu.yml")])
def test_compose_takes_the_file(files: tuple[str, ...]) -> None:
    """By its own check, of whichever version is installed."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    words = [word for name in files for word in ("-f", name)]
    for profile in ("tln", "ucn", "observability", "serve", "audit", "setup"):
        words += ["--profile", profile]
    done = subprocess.run(["docker-compose", *words, "config"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(SERVICES)


def test_an_image_gets_what_the_server_needs() -> None:
    """The extra `http` comes with the requirements that the Dockerfile asks for."""
    assert "requirements.py pyproject.toml http >requirements.txt" in (ROOT / "deploy/Dockerfile").read_text()
    command = [sys.executable, ROOT / "deploy/requirements.py", ROOT / "pyproject.toml", "http"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {re.split(r"[<>=\[]", line)[0] for line in done.stdout.splitlines()}
    assert {"torch", "grpcio", "fastapi", "uvicorn"} <= names


def test_an_image_gets_no_secret_and_no_private_text() -> None:
    """The context is an allow-list, and what the Dockerfile copies is on it."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if line and not line.startswith("#")) == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE) for word in line.split()[:-1]
    ]
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(name == allow or name.startswith(f"{allow}/") for allow in allowed), name
    assert not {"tests", "deploy/demo", ".git", "keys"} & allowed
    for stage in ("tln", "ucn", "auditor"):
        assert f"FROM runtime AS {stage}\n" in dockerfile
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)
    assert "--constraint constraints.txt" in dockerfile
