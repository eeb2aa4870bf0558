"""`tln train` against a real untrusted node: both stacks, recorded and sealed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitwire.sealing import write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from tests.net.tln.training.runs import (
    BLOCK,
    MARKER,
    NUM_DOCUMENTS,
    Run,
    prepared,
)
from tln.settings import TlnSettings
from tln.training.finetune import finetune
from tln.training.progress import NoProgress


@pytest.fixture(scope="session")
def audit_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of one auditor."""
    folder = tmp_path_factory.mktemp("audit") / "keys"
    write_audit_keys(folder)
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A private text whose first document carries the marker, and a public one."""
    folder = tmp_path_factory.mktemp("texts")
    words = ["river", "stone", "walks", "green", "under", "seven", "small", "lamps"]
    for name, seed in (("private", 1), ("public", 2)):
        chosen = np.random.default_rng(seed).integers(len(words), size=(NUM_DOCUMENTS, 12))
        lines = [
            json.dumps({"id": f"{name}-{index}-{MARKER}", "text": f"{MARKER} {' '.join(words[word] for word in row)}"})
            for index, row in enumerate(chosen)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return {"path": str(folder / "private.jsonl"), "public_path": str(folder / "public.jsonl")}


@pytest.fixture
def settings_for(
    start_node: Callable[..., Any], pki: dict[str, TlsFiles], texts: dict[str, str], audit_keys: Path, tmp_path: Path
) -> Callable[..., TlnSettings]:
    """settings_for(LATENT, CLIPPED, ...) -> settings of a run against a fresh node, merged section by section."""

    def make(*layers: dict[str, Any]) -> TlnSettings:
        node = start_node()
        tree: dict[str, Any] = {
            "model": {"source": node.settings.model.source, "first_layer": 2, "last_layer": 4},
            "connection": {
                "address": node.settings.listen,
                "tls": {name: str(path) for name, path in vars(pki["tln"]).items()},
            },
            "corpus": {**texts, "block_tokens": BLOCK, "public_blocks": 4},
            "train": {"out": str(tmp_path / "out"), "steps": 4, "frames_per_step": 6, "max_evaluation_blocks": 6},
            "record": {
                "folder": str(tmp_path / "bundle"),
                "audit_key": str(audit_keys / "audit.pub"),
                "signing_key": str(audit_keys / "tln-recorder.key"),
            },
        }
        for layer in layers:
            for section, values in layer.items():
                tree[section] = {**tree.get(section, {}), **values}
        return build(TlnSettings, tree, "test")

    return make


@pytest.fixture
def run(settings_for: Callable[..., TlnSettings], audit_keys: Path) -> Callable[..., Run]:
    """run(LATENT, CLIPPED, ...) -> prepared, trained, recorded."""

    def make(*layers: dict[str, Any]) -> Run:
        settings = settings_for(*layers)
        prepared(settings)
        announced: list[Mapping[str, Any]] = []
        return Run(finetune(settings, NoProgress(), announced.append), settings, audit_keys, announced[0])

    return make
