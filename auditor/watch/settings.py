"""Settings of `auditor watch`. Refuses, before anything is opened, what could not be watched or acted on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from auditor.plan import Count, Ratio
from auditor.watch.priority import Priority
from splitwire.errors import SettingsError
from splitwire.tls import split_address

DetectorName = Literal["support", "gradient_norm", "forward_norm", "linkage", "token"]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class WatchCeilings:
    """Beyond which a reading is a leak."""

    partition_auc_ratio: Ratio = 0.55
    """AUC of telling real rows from decoys by their norm; needs the truth."""
    valley_ratio: Ratio = 0.1
    """Without the truth: how much emptier the valley between two groups of norms may be than the smaller group."""
    linked_ratio: Ratio = 0.05
    """Share of rows that are found again in earlier frames, above chance."""
    token_pp: float = 1.0
    """Next-token hits above the constant guesser, percentage points; needs the truth."""


@dataclass(frozen=True)
class ActionSettings:
    """What is done when a leak is found."""

    on_leak: tuple[str, ...] = ()
    """Program and arguments, started without a shell, once for every detector that finds a leak."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long that program may take."""
    stop_pids: tuple[Annotated[int, Field(gt=1)], ...] = ()
    """Processes that are sent SIGTERM at the first leak: the trusted node, or the tap."""
    stop_again_seconds: Seconds = 10.0
    """After how long they are sent it again, which ends them at once."""


@dataclass(frozen=True)
class WatchMetricsSettings:
    """Where Prometheus may pull."""

    listen: str = "127.0.0.1:9433"
    """Address host:port, on loopback or a private network of the trusted host; empty for none."""
    audit_file: Path | None = None
    """File of `auditor audit --metrics-file`, which may come later; what it says is shown too."""


@dataclass(frozen=True)
class LivePageSettings:
    """The page that shows the watch in a browser. It only reads."""

    listen: str = ""
    """Address host:port, on loopback or a private network of the trusted host; empty for none."""
    audit: Path | None = None
    """Folder of an audit whose verdict is shown beside; it may not exist yet."""


@dataclass(frozen=True)
class WatchSettings:
    """Which bundle is watched, with which detectors, and how much memory and delay they may take."""

    bundle: Path = Path()
    """Folder that a recorder writes, or will write: of the tap, or of the trusted node."""
    truth: Path | None = None
    """truth.sealed that the trusted node writes. With it detectors are calibrated; on the trusted host only."""
    key: Path | None = None
    """audit.key, which opens the truth."""
    detectors: tuple[DetectorName, ...] = ("support", "gradient_norm", "forward_norm", "linkage", "token")
    """Detectors that run. `token` needs the truth."""
    alpha: Ratio = 0.05
    """Chance that any of the detectors ever calls a leak where there is none, over the whole run."""
    ceilings: WatchCeilings = field(default_factory=WatchCeilings)
    actions: ActionSettings = field(default_factory=ActionSettings)
    metrics: WatchMetricsSettings = field(default_factory=WatchMetricsSettings)
    page: LivePageSettings = field(default_factory=LivePageSettings)
    split_seed: int = 20260101
    """Seed of the hash that deals documents out: half of them teach the detectors, the others are scored."""
    window_rows: Count = 32768
    """Rows of the rolling window on which the gate is read."""
    history_bytes: Count = 32 << 20
    """Earlier rows that linkage compares with."""
    max_classes: Count = 512
    """Tokens that the streaming probe can name: the first ones that it meets."""
    max_backlog_bytes: Count = 256 << 20
    """When more than this waits in the file, frames are skipped up to the newest, and counted."""
    poll_seconds: Annotated[float, Field(gt=0)] = 0.25
    """How long it waits for more."""
    idle_seconds: Seconds = 0.0
    """Ends when nothing was written for this long. 0: never, but the end of the bundle or a signal."""
    stay: bool = False
    """Whether it goes on showing what it found after the end of the bundle, until a signal."""
    priority: Priority = "idle"
    """Its share of the cores: what others leave over (idle), a little (low), or as much as they have (normal)."""

    def check(self) -> None:
        """SettingsError naming the first setting with which it cannot watch."""
        if self.bundle == Path():
            raise SettingsError("bundle is not set", remedy="name the folder that the tap or the trusted node writes")
        if (self.truth is None) != (self.key is None):
            missing = "key" if self.key is None else "truth"
            raise SettingsError(f"{missing} is not set", remedy="give --truth and --key together, or neither")
        if not self.detectors:
            raise SettingsError("detectors is empty", remedy="name at least one detector")
        if self.metrics.listen:
            split_address(self.metrics.listen)
        if self.page.listen:
            split_address(self.page.listen)
        for pid in self.actions.stop_pids:
            if pid == os.getpid() or not Path(f"/proc/{pid}").exists():
                raise SettingsError(f"actions.stop_pids names {pid}, which is no other process", remedy="give its id")
