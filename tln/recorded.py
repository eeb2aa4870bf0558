"""How the gauges of a recorded run were drawn: its run key, its settings, its streams, and the gauges themselves.

Refused: a bundle without a run key, a key that does not open it, and a recorder that does not know the mechanisms, as
the tap. For auditors and the trusted host.

Shapes: N frames, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from splitwire.bundles import Bundle
from splitwire.errors import BundleError
from splitwire.private_files import read_file
from splitwire.sealing import load_sealing_private_key, open_sealed
from splitwire.settings import build
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MECHANISMS, MechanismInputs, Stage
from tln.mechanisms.gauge import Gauge
from tln.mechanisms.permutation import Permutation
from tln.mechanisms.rotation import Rotation
from tln.mechanisms.scale_sign import ScaleSign
from tln.pipeline import FrameSettings
from tln.ratchet import KeySettings, check_keys
from tln.recording import RUN_KEY_PURPOSE
from tln.topology.settings import TopologySettings

GAUGES = (Permutation.name, ScaleSign.name, Rotation.name)
"""Mechanisms that are all gauge, so that nothing of them is left in the rows."""


def load_run_key(path: Path, key: Path) -> RunKey:
    """The run key that a trusted node sealed to the auditor. BundleError when there is none."""
    if not path.exists():
        raise BundleError(
            f"{path} is missing, so the gauges cannot be drawn again",
            remedy="record with record.audit_key, or name the trusted node's file with --run-key",
        )
    return RunKey(open_sealed(read_file(path), load_sealing_private_key(key), RUN_KEY_PURPOSE))


@dataclass(frozen=True)
class RecordedSettings:
    """The sections that say how gauges were drawn."""

    frame: FrameSettings
    keys: KeySettings
    topology: TopologySettings


def recorded_settings(bundle: Bundle, settings: Mapping[str, Any] | None = None) -> RecordedSettings:
    """From `settings`, or from what the recorder told. BundleError when it told none."""
    tree = settings if settings is not None else bundle.settings.get("settings", {})
    if "frame" not in tree:
        raise BundleError(
            f"{bundle.folder} was recorded by {bundle.recorder}, which does not know the frame's mechanisms",
            remedy="name the trusted node's settings file with --config",
        )
    source = str(bundle.folder)
    keys = build(KeySettings, tree.get("keys", {}), source)
    check_keys(keys)
    topology = build(TopologySettings, tree.get("topology", {}), source)
    return RecordedSettings(build(FrameSettings, tree["frame"], source), keys, topology)


def scope_of(bundle: Bundle, recorded: RecordedSettings, session: str) -> str:
    """The session under whose streams the gauges of `session` were drawn: the first of a run that went on after an
    interruption, or of nodes that got the same frame.
    """
    if "key_scope" in bundle.settings:
        return str(bundle.settings["key_scope"])
    return bundle.sessions()[0] if recorded.topology.kind in ("replicas", "views") else session


def gauges_of(recorded: RecordedSettings, keys: FrameKeys) -> list[Gauge]:
    """The gauges that are on, in the order in which they act."""
    settings = recorded.frame
    inputs = MechanismInputs("gram", 0, 0, keys, torch.Generator(), num_views=recorded.topology.num_views)
    built = [
        mechanism
        for name, spec in MECHANISMS.items()
        if name in GAUGES and name in settings.mechanisms
        for mechanism in spec.build(getattr(settings, name, None), inputs)
    ]
    return sorted((gauge for gauge in built if isinstance(gauge, Gauge)), key=lambda gauge: gauge.stage)


class SessionGauges:
    """The gauges of one session and hop. With several views the session has the share of that number of the width."""

    def __init__(self, gauges: list[Gauge], share: int, num_views: int) -> None:
        self._gauges = gauges
        self._share = share
        self._num_views = num_views

    def draw(self, step: int, rows: torch.Tensor) -> list[torch.Tensor]:
        """The secrets of a step, for the whole width."""
        whole = rows.new_empty(*rows.shape[:2], rows.shape[2] * self._num_views)
        return [gauge.draw(step, whole) for gauge in self._gauges]

    def undo(self, rows: torch.Tensor, secrets: list[torch.Tensor], *, is_gradient: bool) -> torch.Tensor:
        """Rows [N, R, D] of the session without the gauges."""
        width, before = rows.shape[2], self._share * rows.shape[2]
        after = width * (self._num_views - 1) - before
        whole = torch.nn.functional.pad(rows, (before, after)) if self._num_views > 1 else rows
        for gauge, secret in zip(reversed(self._gauges), reversed(secrets), strict=True):
            whole = gauge.undo_gradient(whole, secret) if is_gradient else gauge.undo(whole, secret)
        return whole[..., before : before + width].contiguous()

    def arrange(self, table: torch.Tensor, secrets: list[torch.Tensor]) -> torch.Tensor | None:
        """A table [N, R, K] about the rows in their first order; None where no gauge changes the order."""
        is_arranged = False
        for gauge, secret in zip(reversed(self._gauges), reversed(secrets), strict=True):
            if gauge.stage == Stage.ARRANGE:
                table, is_arranged = gauge.undo(table, secret), True
        return table if is_arranged else None
