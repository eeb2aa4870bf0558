"""Runs of `tln train` for tests: layers of settings, and what a finished run left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splitwire.bundles import TRUTH_FILE, RecordedFrame, Truth, TruthRecord, open_bundle, read_truth
from tln.settings import TlnSettings
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress
from tln.training.report import Report

MARKER = "quokka-marker-2718"


NUM_DOCUMENTS = 15


BLOCK = 8


LATENT: dict[str, Any] = {
    "stack": {"kind": "gram"},
    "frame": {
        "mechanisms": ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"],
        "bottleneck": {"width": 8},
        "decoys": {"count": 12, "pool_size": 120},
    },
}


WIDE: dict[str, Any] = {
    "stack": {"kind": "transformer", "trainable": "full"},
    "frame": {
        "mechanisms": ["clip_noise", "decoys"],
        "clip_noise": {"clip_norm": 50.0, "noise_multiplier": 0.001},
        "decoys": {"count": 3, "pool_size": 8},
    },
    "loss": {"distillation": 0.0, "raw_distillation": 0.0},
}


OPEN = {"gradient": {"policy": "open", "unsafe": True}}


CLIPPED = {"gradient": {"policy": "clip_noise", "clip_multiple": 2.0}}


QUIET = {"gradient": {"clip_norm": 10.0, "noise_multiplier": 1e-9}}


WHOLE_BLOCKS = {"frame": {**LATENT["frame"], "decoys": {"count": 2 * BLOCK, "pool_size": 120}}}


def with_decoys(**values: Any) -> dict[str, Any]:
    """A layer over LATENT with these settings of its decoys."""
    return {"frame": {**LATENT["frame"], "decoys": {"count": 12, "pool_size": 120, **values}}}


@dataclass
class Run:
    """A finished run and everything that it left."""

    report: Report
    settings: TlnSettings
    keys: Path
    defence: Mapping[str, Any]

    @property
    def bundle(self) -> Path:
        return Path(self.settings.record.folder)

    def truth(self) -> Truth:
        return read_truth(self.bundle / TRUTH_FILE, self.keys / "audit.key")

    def frames(self, hop: int) -> Iterator[RecordedFrame]:
        return open_bundle(self.bundle).frames(hop)


def prepared(settings: TlnSettings) -> None:
    """What `tln prepare` does."""
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))


def charged_rows(records: Iterable[TruthRecord], num_documents: int) -> dict[str, Any]:
    """What the ledger counts, from the truth: rows of each document that crossed as real, as decoy, for a gradient."""
    counts = {name: np.zeros(num_documents, dtype=np.int64) for name in ("real", "decoy", "gradient")}
    for record in records:
        documents, real = record.document.ravel(), record.real.ravel()
        known = documents >= 0
        charged = {"real": known & real, "decoy": known & ~real, "gradient": known & (record.phase == "train")}
        for name, rows in charged.items():
            np.add.at(counts[name], documents[rows], 1)
    return counts
