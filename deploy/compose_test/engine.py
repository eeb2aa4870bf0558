"""The container engine as the test uses it: compose with the project's file, whichever version is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINE = Path(__file__).with_name("engine.sh")
MISSING = 3
"""What engine.sh ends with when no registry serves an image that it cannot stand in for."""


class ComposeTestError(Exception):
    """What the test expected and did not find; the message says which."""


def engine(command: str) -> bool:
    """Runs a command of engine.sh; False when the image it is to find is nowhere."""
    code = subprocess.run([ENGINE, command], check=False).returncode  # noqa: S603 - our own script
    if code not in (0, MISSING):
        raise ComposeTestError(f"{ENGINE.name} {command} ended with code {code}")
    return code == 0


def compose_command() -> list[str]:
    """`docker compose` where it is installed, else docker-compose."""
    if docker("compose", "version", check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise ComposeTestError("neither docker compose nor docker-compose is installed. Install docker-compose")


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One docker command, its output captured."""
    return _run(["docker", *words], check=check)


@dataclass(frozen=True)
class Project:
    """One compose project. `environment` stands in for an .env file."""

    name: str
    profiles: tuple[str, ...]
    environment: Mapping[str, str]
    services: tuple[str, ...] = ()
    """Those to start: docker-compose 1.29 names all of a file, whatever the profile."""

    def compose(self, *words: str, check: bool = True, quiet: bool = True) -> subprocess.CompletedProcess[str]:
        """One compose command over the project's profiles."""
        flags = [word for profile in self.profiles for word in ("--profile", profile)]
        command = [*compose_command(), "--project-name", self.name, "--file", str(ROOT / "docker-compose.yml"), *flags]
        return _run([*command, *words], check=check, quiet=quiet, environment=self.environment)

    def up(self) -> None:
        """Starts the services in the background."""
        self.compose("up", "--detach", "--no-build", *self.services)

    def state(self, service: str) -> Mapping[str, Any]:
        """What the engine says of the service's container; empty when there is none."""
        names = docker(
            "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={self.name}",
            "--filter", f"label=com.docker.compose.service={service}",
        ).stdout.split()  # fmt: skip
        if not names:
            return {}
        found: dict[str, Any] = json.loads(docker("inspect", names[0]).stdout)[0]
        return {**found["State"], "RestartCount": found["RestartCount"]}

    def logs(self, service: str, lines: int = 15) -> str:
        """The last lines of a service."""
        return self.compose("logs", "--no-color", f"--tail={lines}", service, check=False).stdout

    def down(self) -> None:
        """Stops everything and removes containers, networks and volumes of the project, also those of older files."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "60", check=False)
        for volume in self._volumes():
            docker("volume", "rm", volume, check=False)

    def left(self) -> list[str]:
        """Containers, networks and volumes of the project that are there."""
        label = ("--filter", f"label=com.docker.compose.project={self.name}")
        containers = docker("ps", "--all", "--format", "{{.Names}}", *label).stdout.split()
        networks = docker("network", "ls", "--format", "{{.Name}}", *label).stdout.split()
        return [*containers, *networks, *self._volumes()]

    def _volumes(self) -> list[str]:
        return docker("volume", "ls", "--quiet", "--filter", f"name=^{self.name}_").stdout.split()


def _run(
    command: Sequence[str], *, check: bool = True, quiet: bool = True, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(  # noqa: S603 - our own commands
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout or "").strip().splitlines()[-5:]
        raise ComposeTestError(f"{' '.join(command)} ended with code {done.returncode}\n" + "\n".join(said))
    return done
