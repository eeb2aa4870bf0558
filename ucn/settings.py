"""Settings of the untrusted node, and what may not be combined.

Refused: a server without TLS unless it is bound to loopback and says so; metrics outside loopback without mutual
TLS. Sizes are in bytes, durations in seconds; every limit is checked before allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from splitwire.backbone.settings import ModelSettings
from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles, check_insecure_address, split_address

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]
_Name = Annotated[str, Field(min_length=1)]

TRUSTED_NODE_NAMES = ("tln.splitwire", "tap.splitwire")


@dataclass(frozen=True)
class LimitSettings:
    """What peers may use. A request beyond a limit is answered RESOURCE_EXHAUSTED and changes nothing."""

    max_sessions: _Count = 16
    """Sessions of all peers."""
    max_sessions_per_peer: _Count = 16
    """Sessions of one peer, by its certificate's name."""
    max_full_training_sessions: Annotated[int, Field(ge=0)] = 2
    """Sessions that train every parameter: each holds a copy of the layers, its gradients and two moments."""
    max_frame_bytes: _Count = 256 << 20
    """Payload of one tensor."""
    max_rows: _Count = 1 << 18
    """Rows of one tensor."""
    max_cache_bytes: _Count = 2 << 30
    """Key-value caches of one session, all together."""
    max_total_cache_bytes: _Count = 8 << 30
    """Key-value caches of all sessions."""
    max_cache_bytes_per_peer: _Count = 8 << 30
    """Key-value caches of all sessions of one peer, by its certificate's name."""
    max_kept_steps: _Count = 16
    """TRAIN steps of a session whose BACKWARD has not come yet; each keeps its graph."""
    max_kept_rows: _Count = 1 << 15
    """Rows of those steps, all together: the memory of the graphs grows with them."""
    max_gram_pairs: _Count = 1 << 22
    """Frames x rows x rows of one frame of the gram stack, whose memory grows with it."""
    max_reply_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """Answers a session keeps beside the last one, for requests that come again after a broken stream."""
    max_checkpoints_per_peer: _Count = 8
    """Checkpoints that one peer may keep on disk."""


@dataclass(frozen=True)
class BatchSettings:
    """How decode steps of inference sessions over the same layers become one pass; see docs/design/batching.md."""

    max_rows: _Count = 64
    """Rows of all frames of one pass; a CACHED frame of more rows runs alone, and 1 runs every frame alone."""
    wait_fraction: Annotated[float, Field(ge=0, le=1)] = 0.25
    """A pass waits this fraction of the last one's time for sessions that were answered a moment ago; 0 never waits."""
    prefill_positions: _Count = 512
    """Positions of one piece of a long CACHED frame; between two pieces other sessions have their turn."""


@dataclass(frozen=True)
class AdmissionSettings:
    """How a key-value cache starts when the node has no room for it; see docs/design/batching.md."""

    max_waiting: Annotated[int, Field(ge=0)] = 64
    """Caches that may wait for room, of all peers; 0 refuses at once."""
    max_waiting_per_peer: Annotated[int, Field(ge=0)] = 16
    """Caches of one peer that may wait."""
    wait_seconds: _Seconds = 30.0
    """How long a cache waits before it is refused; keep it below the trusted node's step timeout."""
    start_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of limits.max_total_cache_bytes, and of the peer's limit, up to which caches start; the rest is to grow."""


@dataclass(frozen=True)
class MetricsSettings:
    """Where Prometheus may pull. An empty address switches the listener off."""

    listen: str = ""
    """Address for Prometheus, host:port; empty for none. Mutual TLS wherever `tls` is set."""


@dataclass(frozen=True)
class SnapshotSettings:
    """Whether and where to write down what sessions train. 0 steps writes nothing."""

    every_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps between two snapshots of a session; 0 takes none."""
    folder: Path | None = None
    """Folder for snapshot bundles; each session gets a folder of its own there, named by its hash."""
    signing_key: Path | None = None
    """Ed25519 key that signs each bundle's manifest; none leaves it unsigned."""
    max_pending_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    """Snapshots that wait for the disk; beyond it they are dropped and counted."""


@dataclass(frozen=True)
class UcnSettings:
    """Everything that `ucn serve` needs."""

    listen: _Name = "127.0.0.1:7431"
    """Address for trusted nodes and taps, host:port."""
    tls: TlsFiles | None = None
    allowed_names: tuple[_Name, ...] = TRUSTED_NODE_NAMES
    """Subject alternative names of client certificates that may call; a certificate of the same CA is not enough."""
    insecure_loopback: bool = False
    """Plaintext, on a loopback address only."""
    health_listen: str = ""
    """Loopback address, host:port, that serves the health service alone and without TLS, for probes of this machine,
    which hold no client's certificate; empty for none."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """Not loaded when only the gram stack is allowed."""
    stacks: tuple[Literal["transformer", "gram"], ...] = ("transformer", "gram")
    """Computations that sessions may ask for."""
    gram_device: _Name = "cpu"
    """Device of torch for the gram stack."""
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    """Threads of torch on the CPU; 0 leaves the choice to torch."""
    lease_seconds: Annotated[int, Field(ge=1)] = 120
    """A session without a stream is freed after this long."""
    attach_timeout_seconds: _Seconds = 10.0
    """A new stream must name its session within this time."""
    frame_timeout_seconds: _Seconds = 60.0
    """The next piece of a frame that has begun must come within this time."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long sessions may go on after SIGTERM before their streams are ended."""
    step_grace_seconds: _Seconds = 60.0
    """How long a computation that runs when the drain ends may still take; longer than the longest step."""
    checkpoint_dir: Path | None = None
    """Folder for checkpoints; none refuses them."""
    reflection: bool = False
    """Whether the server tells its methods to anyone who may connect."""
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    batching: BatchSettings = field(default_factory=BatchSettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)


def check(settings: UcnSettings) -> None:
    """SettingsError for settings that cannot work together."""
    split_address(settings.listen)
    if not settings.stacks:
        raise SettingsError("stacks is empty", remedy='allow at least one, for instance stacks = ["transformer"]')
    _check_transport(settings)
    _check_metrics(settings)
    _check_health(settings)
    _check_snapshots(settings.snapshots)


def _check_transport(settings: UcnSettings) -> None:
    if settings.insecure_loopback:
        if settings.tls is not None:
            raise SettingsError("insecure_loopback and tls are both set", remedy="remove one of them")
        check_insecure_address(settings.listen)
    elif settings.tls is None:
        raise SettingsError(
            "tls is not set",
            remedy="set tls.ca, tls.certificate and tls.key (see `splitwire pki`), or insecure_loopback on 127.0.0.1",
        )
    elif not settings.allowed_names:
        raise SettingsError("allowed_names is empty: nobody could call", remedy="name the trusted node's certificate")


def _check_metrics(settings: UcnSettings) -> None:
    if not settings.metrics.listen:
        return
    split_address(settings.metrics.listen)
    if settings.tls is None:
        check_insecure_address(settings.metrics.listen)


def _check_health(settings: UcnSettings) -> None:
    if settings.health_listen:
        check_insecure_address(settings.health_listen)


def _check_snapshots(settings: SnapshotSettings) -> None:
    """SettingsError unless steps and folder are both set, or neither."""
    if settings.every_steps and settings.folder is None:
        raise SettingsError(
            f"snapshots.every_steps is {settings.every_steps} and snapshots.folder is not set",
            remedy="name a folder (--snapshot-folder), or leave both out",
        )
    if settings.folder is not None and not settings.every_steps:
        raise SettingsError(
            "snapshots.folder is set and snapshots.every_steps is 0",
            remedy="say how often (--snapshot-every), or leave both out",
        )
