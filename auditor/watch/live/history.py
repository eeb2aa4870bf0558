"""What the page shows, as plain values: the newest state, and samples of the past in bounded memory."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from auditor.watch.tokens import TokenDetector
from auditor.watch.watcher import WatchState

SCHEMA = "splitwire.watch/1"
_SAMPLE_SECONDS = 1.0
_KEPT_SAMPLES = 900


class History:
    """Samples of a watch, one a second at most, the newest quarter of an hour."""

    def __init__(self, audit: Path | None) -> None:
        self._audit = audit
        self._samples: deque[dict[str, Any]] = deque(maxlen=_KEPT_SAMPLES)

    def add(self, state: WatchState) -> dict[str, Any]:
        """Takes a state; what the page shows of it and of all before."""
        sample = _sample(state)
        if not self._samples or state.seconds - self._samples[-1]["seconds"] >= _SAMPLE_SECONDS or state.is_closed:
            self._samples.append(sample)
        return {
            "schema": SCHEMA,
            **sample,
            "state": _words(state),
            "leaks": [f"{reading.detector}: {reading.leak}" for reading in state.readings if reading.leak],
            "readings": [asdict(reading) for reading in state.readings],
            "support": [asdict(line) for line in state.support],
            "num_frames": state.num_frames,
            "skipped": state.num_skipped,
            "unmatched": state.num_unmatched,
            "problems": state.num_problems,
            "samples": list(self._samples),
            "verdict": last_verdict(self._audit),
        }


def last_verdict(folder: Path | None) -> Mapping[str, Any] | None:
    """State and time of the audit in this folder; None where there is none, or none that is whole."""
    if folder is None:
        return None
    file = folder / "audit.json"
    try:
        verdict = json.loads(file.read_text(encoding="utf-8"))["verdict"]
        return {"state": str(verdict["state"]), "written": file.stat().st_mtime}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sample(state: WatchState) -> dict[str, Any]:
    token = next((reading for reading in state.readings if reading.detector == TokenDetector.name), None)
    return {
        "seconds": round(state.seconds, 3),
        "bytes": state.hop_bytes,
        "backlog_bytes": state.backlog_bytes,
        "gate_pp": None if state.gate is None else state.gate.gate_pp,
        "floor_pp": None if state.gate is None else state.gate.floor_pp,
        "ceiling_pp": None if state.gate is None else state.gate.ceiling_pp,
        "effect_pp": None if token is None else token.value,
        "effect_lower_pp": None if token is None else token.lower,
    }


def _words(state: WatchState) -> str:
    if not state.has_begun:
        return "waiting for the recorder"
    return "bundle closed" if state.is_closed else "watching"
