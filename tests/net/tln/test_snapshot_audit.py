"""Training runs against a node that snapshots itself, audited: what leaks is found, and what does not is not.

full        every weight trains in the open: the snapshots tell members, and canaries more so
still       the same with a learning rate that changes nothing: they tell neither
naked       latent frames without gauge or noise: a member's frame was seen before
defended    the same behind fresh gauges, noise and decoys: it cannot be told
"""

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
from splitwire.bundles import read_truth
from splitwire.sealing import write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from tln.keys import KEY_BYTES, RunKey
from tln.settings import TlnSettings
from tln.training.finetune import finetune
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress
from ucn.settings import SnapshotSettings

NUM_DOCUMENTS, NUM_CANARIES, BLOCK, STEPS = 60, 20, 8, 40
WIDE: dict[str, Any] = {
    "stack": {"kind": "transformer", "trainable": "full"},
    "frame": {"mechanisms": []},
    "loss": {"distillation": 0.0, "raw_distillation": 0.0},
}
NARROW: dict[str, Any] = {"kind": "gram"}
DEFENDED = ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"]
RUNS: dict[str, dict[str, Any]] = {
    "full": WIDE,
    "still": {**WIDE, "train": {"remote_learning_rate": 1e-9}},
    "naked": {"stack": NARROW, "frame": {"mechanisms": ["bottleneck"], "bottleneck": {"width": 8}}},
    "defended": {
        "stack": NARROW,
        "frame": {"mechanisms": DEFENDED, "bottleneck": {"width": 8}, "decoys": {"count": 12, "pool_size": 120}},
    },
}


def _text(folder: Path) -> Path:
    """Ordinary documents of random letters, and canaries."""
    letters = np.random.default_rng(5).integers(97, 123, size=(NUM_DOCUMENTS + NUM_CANARIES, 20)).astype(np.uint8)
    names = [f"doc-{n}" for n in range(NUM_DOCUMENTS)] + [f"canary-{n}" for n in range(NUM_CANARIES)]
    lines = [json.dumps({"id": name, "text": row.tobytes().decode()}) for name, row in zip(names, letters, strict=True)]
    (folder / "private.jsonl").write_text("\n".join(lines))
    return folder / "private.jsonl"


@pytest.fixture
def audited(
    start_node: Callable[..., Any], pki: dict[str, TlsFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Any]]:
    """audited(run) -> its results by attack. Who is held out is the same in every run."""
    monkeypatch.setattr(RunKey, "generate", classmethod(lambda cls: cls(bytes(KEY_BYTES))))

    def make(run: str) -> dict[str, Any]:
        write_audit_keys(tmp_path / "keys")
        node = start_node(snapshots=SnapshotSettings(every_steps=1, folder=tmp_path / "snapshots"))
        is_wide = run in ("full", "still")
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
            "gradient": {"policy": "open", "unsafe": True},
            "record": {"folder": str(tmp_path / "bundle"), "audit_key": str(tmp_path / "keys" / "audit.pub")},
            **RUNS[run],
        }
        tree["train"] = {
            "out": str(tmp_path / "out"),
            "steps": STEPS,
            "frames_per_step": 8,
            "max_evaluation_blocks": 0 if is_wide else 6,
            "membership_blocks": 0 if is_wide else 48,
            "learning_rate": 0.01 if is_wide else 0.001,
            **RUNS[run].get("train", {}),
        }
        settings = build(TlnSettings, tree, "test")
        texts = load_texts(settings.model, settings.corpus)
        prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
        report = finetune(settings, NoProgress(), lambda _defence: None)
        node.stop()
        key = tmp_path / "keys" / "audit.key"
        assert read_truth(tmp_path / "bundle" / "truth.sealed", key).facts["canary_prefix"] == "canary-"
        plan = Plan(
            attacks=("trajectory", "membership") if is_wide else ("trajectory", "membership", "frame_matching"),
            families=(STATEFUL_REMOTE_STATE, MEMBERSHIP_PROPERTY),
            statistics=StatisticsSettings(repetitions=200),
        )
        audit = run_audit([tmp_path / "bundle", tmp_path / "snapshots" / report.session_hash], key=key, plan=plan)
        assert audit["not_measured"] == []
        return {result["attack"]: result for result in audit["results"]}

    return make


@pytest.mark.parametrize("run", ["full", "still"])
def test_weights_that_learned_tell_members_and_weights_that_did_not_do_not(
    audited: Callable[[str], dict[str, Any]], run: str
) -> None:
    """By the same attack on the same texts, members and canaries."""
    results = audited(run)
    assert results["trajectory"]["num_frames"] == STEPS
    area, _ = results["membership"]["checks"]
    canaries, _ = results["membership"]["controls"]
    assert canaries["found"] == (run == "full")
    assert (area["lower"] > 0.5) == (run == "full")
    assert run == "full" or area["state"] == "inconclusive"


@pytest.mark.parametrize("run", ["naked", "defended"])
def test_frames_that_were_seen_before_tell_members_unless_gauge_and_noise_are_fresh(
    audited: Callable[[str], dict[str, Any]], run: str
) -> None:
    """The surrogate's weights tell nobody in either run; they are too few to remember a text.

    Keys are random, so under noise the bound of one of the two planted controls may stay just below the ceiling.
    """
    results = audited(run)
    area, _ = results["frame_matching"]["checks"]
    assert area["state"] == ("fail" if run == "naked" else "inconclusive")
    assert (area["lower"] > 0.55) == (run == "naked")
    found = [control["found"] for control in results["frame_matching"]["controls"]]
    assert found == [True, True] if run == "naked" else any(found)
    assert results["membership"]["checks"][0]["state"] == "inconclusive"
