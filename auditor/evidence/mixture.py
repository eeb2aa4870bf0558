"""Whether bundles belong to one system: a number over two defences would be true of neither.

Compared are the settings that shape what crosses, section by section, between all bundles of one recorder. Addresses,
folders, keys and lengths of runs may differ. Bundles of the tap state no defence and are compared by what crossed:
widths (rows.py) and kinds of stack (below).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from auditor.evidence.capture import Capture
from splitwire.errors import BundleError
from splitwire.settings import flatten

_SECTIONS = ("model", "stack", "frame", "gradient", "topology")
_RUN_KEYS = frozenset({"stack.resume_checkpoint"})
_REMEDY = "audit bundles of one system at a time"


class SettledBundle(Protocol):
    """The part of a bundle that states settings."""

    folder: Path

    @property
    def recorder(self) -> str:
        """Which recorder wrote it."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Effective settings of the recording program."""
        ...


def refuse_mixed_settings(bundles: Sequence[SettledBundle]) -> None:
    """BundleError with the first setting in which two bundles differ."""
    first: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for bundle in bundles:
        for section in _SECTIONS:
            values = bundle.settings.get(section)
            if not isinstance(values, dict):
                continue
            name, known = first.setdefault((bundle.recorder, section), (bundle.folder.name, _flat(section, values)))
            _compare(name, known, bundle.folder.name, _flat(section, values))


def refuse_mixed_stacks(capture: Capture) -> None:
    """BundleError when the attacked frames are of both stacks, whose units are not the same thing."""
    by_row = capture.items.by_row
    if len(by_row) and bool(by_row.any()) and not bool(by_row.all()):
        rows, sequences = int(by_row.sum()), int(np.count_nonzero(~by_row))
        raise BundleError(
            f"the bundles mix two stacks: {rows} frames of the gram stack, {sequences} sequences of the transformer",
            remedy=f"{_REMEDY}, or narrow compute_modes in the plan",
        )


def _flat(section: str, values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(values, f"{section}.") if key not in _RUN_KEYS}


def _compare(name: str, known: dict[str, Any], other: str, values: dict[str, Any]) -> None:
    for key in sorted(known.keys() | values.keys()):
        if known.get(key) != values.get(key):
            raise BundleError(
                f"the bundles {name} and {other} were recorded under different settings: {key} is "
                f"{known.get(key)!r} in one and {values.get(key)!r} in the other",
                remedy=_REMEDY,
            )
