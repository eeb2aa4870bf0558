"""What the compose test needs before anything is up: keys, a short run's settings, and the model in its volume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import splitwire
from deploy.compose_test.engine import ROOT, ComposeTestError, Project, docker
from deploy.demo.processes import free_port, program
from splitwire.backbone import EMBEDDED_MODEL, default_cache_folder

HERE = Path(__file__).resolve().parent
IMAGE_USER = 10001


def prepare(out: Path) -> dict[str, str]:
    """Keys and settings of the test in a fresh folder; the environment that names them."""
    if out.exists() and not (out / "COMPOSE_TEST").exists():
        raise ComposeTestError(f"{out} exists and is not this test's folder. Choose another --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "COMPOSE_TEST").touch()
    pki, ucn = out / "pki", out / "ucn"
    for command in (
        ["splitwire", "pki", "init", str(pki)],
        ["splitwire", "pki", "request", str(ucn)],
        ["splitwire", "pki", "sign", str(pki), str(ucn / "request.pem"), "--out", str(out / "signed")],
        ["auditor", "keygen", str(out / "audit")],
    ):
        subprocess.run(program(command), check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own programs
    for name in ("ca.pem", "cert.pem"):
        shutil.copy2(out / "signed" / name, ucn / name)
    (out / "series").mkdir()
    (out / "grafana.password").write_text(os.urandom(12).hex())
    (out / "api.keys").touch(0o600)
    (out / "api.keys").write_text(os.urandom(32).hex())
    (out / "tln.toml").write_text(_merged_settings())
    user = os.getuid() or IMAGE_USER
    if user != os.getuid():
        for path in (out, *out.rglob("*")):
            os.chown(path, user, user)
    ports = {name: str(free_port()) for name in ("PROMETHEUS_PORT", "GRAFANA_PORT", "WATCH_PORT")}
    return {
        **ports,
        "UCN_LISTEN": f"127.0.0.1:{free_port()}",
        "UCN_METRICS_LISTEN": f"127.0.0.1:{free_port()}",
        "SERVE_LISTEN": f"127.0.0.1:{free_port()}",
        "API_KEYS": str(out / "api.keys"),
        "SPLITWIRE_UID": str(user),
        "SPLITWIRE_GID": str(user),
        "PKI": str(pki),
        "UCN_KEYS": str(ucn),
        "AUDIT_KEYS": str(out / "audit"),
        "GRAFANA_PASSWORD_FILE": str(out / "grafana.password"),
        "PROMETHEUS_DATA": str(out / "series"),
        "TLN_CONFIG": str(out / "tln.toml"),
        "TEXTS": str(ROOT / "deploy" / "demo" / "data"),
        "COMPOSE_HTTP_TIMEOUT": "300",
    }


def _merged_settings() -> str:
    """The settings file of a user, with what makes the run short and open."""
    tree = tomllib.loads((ROOT / "deploy" / "compose" / "tln.toml").read_text(encoding="utf-8"))
    for section, values in tomllib.loads((HERE / "tln.toml").read_text(encoding="utf-8")).items():
        tree.setdefault(section, {}).update(values)
    return "".join(
        f"{section}.{key} = {_toml(value)}\n" for section, values in tree.items() for key, value in values.items()
    )


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def fill_models(project: Project) -> None:
    """The model from this machine's cache into the volume, since a test downloads nothing twice."""
    cache = default_cache_folder() / EMBEDDED_MODEL
    if not cache.exists():
        subprocess.run(program(["splitwire", "fetch"]), check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    volume = f"{project.name}_models"
    docker("volume", "create", volume)
    volumes = ("--volume", f"{cache}:/from:ro", "--volume", f"{volume}:/models")
    copy = f"cp -r /from /models/{EMBEDDED_MODEL} && chmod -R a+rX /models/{EMBEDDED_MODEL}"
    image = f"splitwire/ucn:{splitwire.__version__}"
    docker("run", "--rm", "--user", "0", "--entrypoint", "sh", *volumes, image, "-c", copy)
