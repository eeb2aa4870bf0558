"""A training run against a node that snapshots itself, audited: state and membership, on both stacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor.audit import run_audit
from auditor.channels import MEMBERSHIP_PROPERTY, STATEFUL_REMOTE_STATE
from auditor.plan import Plan, StatisticsSettings
from auditor.report import write_report
from auditor.runlog import RunLog
from splitwire.bundles import read_truth
from splitwire.sealing import write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from tln.finetune import finetune
from tln.keys import KEY_BYTES, RunKey
from tln.prepare import dependencies_of, load_texts, prepare
from tln.progress import NoProgress
from tln.settings import TlnSettings
from ucn.settings import SnapshotSettings

NUM_DOCUMENTS, NUM_CANARIES, BLOCK, STEPS = 60, 20, 8, 40
LATENT: dict[str, Any] = {
    "stack": {"kind": "gram"},
    "frame": {
        "mechanisms": ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"],
        "bottleneck": {"width": 8},
        "decoys": {"count": 12, "pool_size": 120},
    },
}
WIDE: dict[str, Any] = {
    "frame": {"mechanisms": []},
    "loss": {"distillation": 0.0, "raw_distillation": 0.0},
}
STACKS = {
    "gram": LATENT,
    "full": {**WIDE, "stack": {"kind": "transformer", "trainable": "full"}},
}
PLAN = Plan(
    attacks=("trajectory", "membership"),
    families=(STATEFUL_REMOTE_STATE, MEMBERSHIP_PROPERTY),
    statistics=StatisticsSettings(repetitions=200),
)


def _text(folder: Path) -> Path:
    """Ordinary documents of random letters, and canaries."""
    letters = np.random.default_rng(5).integers(97, 123, size=(NUM_DOCUMENTS + NUM_CANARIES, 20)).astype(np.uint8)
    names = [f"doc-{n}" for n in range(NUM_DOCUMENTS)] + [f"canary-{n}" for n in range(NUM_CANARIES)]
    lines = [json.dumps({"id": name, "text": row.tobytes().decode()}) for name, row in zip(names, letters, strict=True)]
    (folder / "private.jsonl").write_text("\n".join(lines))
    return folder / "private.jsonl"


@pytest.mark.parametrize("stack", STACKS)
def test_snapshots_of_a_run_are_audited(
    start_node: Callable[..., Any],
    pki: dict[str, TlsFiles],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stack: str,
) -> None:
    """Both families are measured; where the layers train in the open, members and canaries are found."""
    monkeypatch.setattr(RunKey, "generate", classmethod(lambda cls: cls(bytes(KEY_BYTES))))  # who is held out
    write_audit_keys(tmp_path / "keys")
    node = start_node(snapshots=SnapshotSettings(every_steps=1, folder=tmp_path / "snapshots"))
    tree: dict[str, Any] = {
        "model": {"source": node.settings.model.source, "first_layer": 2, "last_layer": 4},
        "connection": {
            "address": node.settings.listen,
            "tls": {name: str(path) for name, path in vars(pki["tln"]).items()},
        },
        "corpus": {
            "path": str(_text(tmp_path)),
            "block_tokens": BLOCK,
            "holdout_ratio": 0.4,
            "canary_prefix": "canary-",
            "canary_repeats": 4,
        },
        "train": {
            "out": str(tmp_path / "out"),
            "steps": STEPS,
            "frames_per_step": 8,
            "max_evaluation_blocks": 6 if stack == "gram" else 0,
            "membership_blocks": 48 if stack == "gram" else 0,
            "learning_rate": 0.01,
        },
        "gradient": {"policy": "open", "unsafe": True},
        "record": {"folder": str(tmp_path / "bundle"), "audit_key": str(tmp_path / "keys" / "audit.pub")},
        **STACKS[stack],
    }
    settings = build(TlnSettings, tree, "test")
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
    report = finetune(settings, NoProgress(), lambda _defence: None)
    node.stop()

    snapshots = tmp_path / "snapshots" / report.session_hash
    key = tmp_path / "keys" / "audit.key"
    assert read_truth(tmp_path / "bundle" / "truth.sealed", key).facts["canary_prefix"] == "canary-"
    audit = run_audit([tmp_path / "bundle", snapshots], key=key, plan=PLAN)
    assert audit["not_measured"] == []
    results = {result["attack"]: result for result in audit["results"]}
    assert results["trajectory"]["num_frames"] == STEPS
    area, rate = results["membership"]["checks"]
    canaries, planted = results["membership"]["controls"]
    assert (area["metric"], rate["metric"]) == ("membership_auc", "membership_tpr_at_1_percent_fpr")
    assert results["membership"]["details"]["canaries"] >= NUM_CANARIES // 2
    if stack == "full":
        assert canaries["found"]
        assert min(planted["value"], area["value"]) > 0.8
        write_report(audit, tmp_path / "report", RunLog().tree())
        without = run_audit([tmp_path / "bundle"], key=key, plan=PLAN)
        assert {"--snapshot-every" in entry["reason"] for entry in without["not_measured"]} == {True}
