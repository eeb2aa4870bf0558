"""What the demonstration runs: two parts, their folders and addresses, and the command lines of the three programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """One fine-tuning run and what its audit has to show."""

    name: str
    title: str
    gradient: tuple[str, ...]


PARTS = (
    Part(
        "open",
        "the gradient as published: raw",
        ("gradient.policy=open", "gradient.unsafe=true", "gradient.clip_multiple=0", "gradient.noise_multiplier=0.35"),
    ),
    Part("clipped", "the gradient clipped and noised", ()),
)


@dataclass(frozen=True)
class Story:
    """Folders and addresses of one demonstration."""

    root: Path
    steps: int
    documents: int
    ucn_port: int
    tap_port: int

    @property
    def pki(self) -> Path:
        """Certificates of the three programs."""
        return self.root / "pki"

    @property
    def keys(self) -> Path:
        """The auditor's keys and those of the recorders."""
        return self.root / "keys"

    def ucn(self) -> list[str]:
        """Command line of the untrusted node."""
        own = self.pki / "ucn"
        return [
            "ucn",
            "serve",
            "--config",
            str(HERE / "ucn.toml"),
            *_set(
                f"listen=127.0.0.1:{self.ucn_port}",
                f"tls.ca={own / 'ca.pem'}",
                f"tls.certificate={own / 'cert.pem'}",
                f"tls.key={own / 'key.pem'}",
            ),
        ]

    def tap(self, bundle: Path) -> list[str]:
        """Command line of the tap that records into `bundle`."""
        return [
            "auditor",
            "tap",
            "--listen",
            f"127.0.0.1:{self.tap_port}",
            "--upstream",
            f"127.0.0.1:{self.ucn_port}",
            "--tls",
            str(self.pki / "tap"),
            "--signing-key",
            str(self.keys / "tap-recorder.key"),
            "--out",
            str(bundle),
        ]

    def tln(self, command: str, *pairs: str, config: str = "tln.toml") -> list[str]:
        """Command line of the trusted node, connected to the tap."""
        own = self.pki / "tln"
        return [
            "tln",
            command,
            "--config",
            str(HERE / config),
            *_set(
                f"connection.address=127.0.0.1:{self.tap_port}",
                f"connection.tls.ca={own / 'ca.pem'}",
                f"connection.tls.certificate={own / 'cert.pem'}",
                f"connection.tls.key={own / 'key.pem'}",
                *pairs,
            ),
        ]

    def training(self) -> tuple[str, ...]:
        """What preparation and training have in common beside the file."""
        data = HERE / "data"
        return (
            f"corpus.path={data / 'private.jsonl'}",
            f"corpus.public_path={data / 'public.jsonl'}",
            f"corpus.max_documents={self.documents}",
            f"train.steps={self.steps}",
        )


def _set(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]
