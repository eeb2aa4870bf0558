"""Settings of the tap. Refuses, before anything is opened, what could not be recorded or would be sent in the clear."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from auditor.perturbation import PerturbSettings
from splitwire.errors import SettingsError
from splitwire.pki import TLN_NAME
from splitwire.tls import TlsFiles, check_insecure_address, split_address


@dataclass(frozen=True)
class MetricsSettings:
    """Where Prometheus may pull."""

    listen: str = ""
    """Address host:port, on loopback or a private network of the trusted host; empty for none."""


@dataclass(frozen=True)
class TapSettings:
    """Where the tap listens, where it forwards to, and where it keeps what it saw."""

    listen: str = "127.0.0.1:7432"
    """Address for the trusted node, host:port. Port 0 takes a free one, which is printed."""
    upstream: str = ""
    """Address of the untrusted node, host:port."""
    upstream_name: str = ""
    """Name in the untrusted node's certificate, where it is not the host of `upstream`."""
    out: Path = Path()
    """Folder of the bundle: new or empty."""
    tls: TlsFiles | None = None
    """The tap's certificate, used on both sides. Required unless `insecure_loopback`."""
    allowed_names: tuple[str, ...] = (TLN_NAME,)
    """Subject alternative names that may connect."""
    insecure_loopback: bool = False
    """Plaintext on both sides, between loopback addresses only."""
    signing_key: Path | None = None
    """Ed25519 key that signs the manifest. Without it the bundle is unsigned, and `auditor verify --trust` says so."""
    max_queue_bytes: Annotated[int, Field(ge=1)] = 256 << 20
    """Bytes that may wait for the disk."""
    when_full: Literal["drop", "wait"] = "drop"
    """Whether a full queue loses records, and the bundle its verdict, or slows the wire down."""
    when_failed: Literal["stop", "forward"] = "stop"
    """Whether the tap stops when it can no longer record, or goes on forwarding without a bundle."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running calls may take to end after SIGTERM; a second SIGTERM ends them at once."""
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    perturb: PerturbSettings = field(default_factory=PerturbSettings)

    def check(self) -> None:
        """SettingsError or PkiError naming the first setting with which the tap cannot run."""
        for name, value in (("listen", self.listen), ("upstream", self.upstream)):
            if not value:
                raise SettingsError(f"{name} is not set", remedy=f"give host:port with --{name}")
            split_address(value)
            if self.insecure_loopback:
                check_insecure_address(value)
        if self.metrics.listen:
            split_address(self.metrics.listen)
        self.perturb.check()
        if self.out == Path():
            raise SettingsError("out is not set", remedy="name a new folder for the bundle, --out DIR")
        if self.tls is None and not self.insecure_loopback:
            raise SettingsError(
                "tls is not set",
                remedy="give --tls DIR with the tap's ca.pem, cert.pem and key.pem (splitwire pki init)",
            )
        if self.tls is not None and self.insecure_loopback:
            raise SettingsError("tls and insecure_loopback are both set", remedy="choose one of them")
        if not self.allowed_names and not self.insecure_loopback:
            raise SettingsError("allowed_names is empty, so nobody could connect", remedy='use ["tln.splitwire"]')
