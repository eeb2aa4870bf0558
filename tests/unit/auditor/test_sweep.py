"""Sweeps: what is chosen is nested, what is left is what was asked for, and leaked gauges show what rotations hid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from auditor.audit import run_audit
from auditor.channels import FORWARD_ONLY, JOINT
from auditor.evidence.splits import SELECT, TEST
from auditor.plan import Plan, ProbeSettings, StatisticsSettings, SweepSettings
from auditor.report.page import render_page
from auditor.scorers.sweep import NO_UNGAUGED, first_share, restricted
from auditor.views.base import NotMeasurableError
from auditor.views.token import TokenKey, TokenView
from splitwire.bundles import open_bundle, read_truth
from splitwire.errors import BundleError
from splitwire.v1 import channels_pb2

PLAN = Plan(
    name="sweep",
    attacks=("compromise_sweep", "linear_probe"),
    families=(FORWARD_ONLY,),
    scope=(FORWARD_ONLY,),
    statistics=StatisticsSettings(repetitions=200),
    probe=ProbeSettings(control_coverage_ratio=0.5),
    sweeps=SweepSettings(gauges_leaked=(0.5, 1.0)),
)


def _table(report: dict[str, Any]) -> dict[tuple[str, float], dict[str, Any]]:
    result = next(entry for entry in report["results"] if entry["attack"] == "compromise_sweep")
    assert result["checks"] == []
    assert result["controls"][0]["found"]
    return {(entry["setting"], entry["ratio"]): entry for entry in result["details"]["sweep"]}


def _without_gauges(run: Any, folder: Path, leak: float) -> Path:
    """What `tln replay` writes, with rows that point to their label as if a rotation were undone."""
    codes = torch.randn(12, 8, generator=torch.Generator().manual_seed(5))
    truth = read_truth(run.bundle / "truth.sealed", run.key)
    for frame in open_bundle(run.bundle).frames(channels_pb2.HOP_FORWARD):
        record = truth.records[frame.session_hash, frame.header.step]
        label = torch.from_numpy(record.label).long()
        tensors = {"rows": frame.tensor.float() + leak * codes[label], "real": torch.from_numpy(record.real).long()}
        for name in ("order", "token", "label", "document"):
            tensors[name] = torch.from_numpy(getattr(record, name)).long()
        path = folder / frame.session_hash / f"{frame.header.step:08d}-forward.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    return folder


def test_a_leak_grows_with_what_is_known(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="none", frames=240, leak=0.5)
    report = run_audit([run.bundle], key=run.key, plan=PLAN)
    table = _table(report)
    whole = table["frames_captured", 1.0]
    assert whole["lower_pp"] > 5
    assert whole["value_pp"] == table["decoys_revealed", 0.0]["value_pp"]
    few = table["known_plaintext", 0.05]
    assert few["value_pp"] is None or few["value_pp"] < whole["value_pp"] - 3
    rows = [table["frames_captured", ratio]["num_rows"] for ratio in (0.1, 0.25, 0.5, 1.0)]
    assert rows == sorted(rows)
    assert rows[0] < 0.2 * rows[3]
    assert len({table["decoys_revealed", ratio]["num_rows"] for ratio in (0.0, 0.25, 0.5, 0.9)}) == 1
    assert all(entry["twin_lower_pp"] is None or entry["twin_lower_pp"] < 1 for entry in table.values())
    page = render_page(report)
    assert "frames captured 25 %" in page
    assert "known plaintext 1 %" in page
    assert NO_UNGAUGED in next(r for r in report["results"] if r["attack"] == "compromise_sweep")["notes"]


def test_leaked_gauges_show_what_the_wire_did_not(make_run: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(gradient="none", frames=240)
    folder = _without_gauges(run, tmp_path / "ungauged", 1.0)
    table = _table(run_audit([run.bundle], key=run.key, plan=PLAN, ungauged=folder))
    assert table["gauges_leaked", 1.0]["lower_pp"] > 5
    assert table["gauges_leaked", 0.5]["num_rows"] < table["gauges_leaked", 1.0]["num_rows"]
    on_the_wire = table["frames_captured", 1.0]
    assert on_the_wire["is_degenerate"] or on_the_wire["lower_pp"] < 1


def test_a_sweep_alone_measures_no_family(make_run: Callable[..., Any]) -> None:
    """It has no check, so it can stand for none."""
    run = make_run(gradient="none", frames=60)
    plan = replace(PLAN, attacks=("compromise_sweep",))
    report = run_audit([run.bundle], key=run.key, plan=plan)
    assert report["verdict"]["state"] == "inconclusive"
    assert any(r["kind"] == "not_measured" and r["subject"] == FORWARD_ONLY for r in report["verdict"]["reasons"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [("empty", "holds no rows"), ("no truth", "does not say"), ("broken", "cannot be read"), ("foreign", "no truth")],
)
def test_a_folder_that_is_no_replay_of_this_run_is_refused(
    make_run: Callable[..., Any], tmp_path: Path, fault: str, message: str
) -> None:
    run = make_run(gradient="none", frames=30)
    folder = tmp_path / "ungauged"
    if fault != "empty":
        first = sorted(_without_gauges(run, folder, 0.0).glob("*/*"))[0]
        if fault == "no truth":
            safetensors.torch.save_file({"rows": torch.zeros(1, 16, 8)}, first)
        if fault == "broken":
            first.write_bytes(b"nothing")
        if fault == "foreign":
            first.rename(first.with_name("00009999-forward.safetensors"))
    with pytest.raises(BundleError, match=message):
        run_audit([run.bundle], key=run.key, plan=PLAN, ungauged=folder, parts=tmp_path / "parts")
    assert (tmp_path / "parts").exists() == (fault != "empty")  # known before anything is begun


def test_larger_shares_hold_smaller_ones() -> None:
    names = np.arange(100, 140)
    small, large = first_share(names, 0.1, 3), first_share(names, 0.5, 3)
    assert (len(small), len(large)) == (4, 20)
    assert set(small) < set(large)
    assert len(first_share(names, 0.001, 3, fewest=1)) == 1


def test_a_restricted_view_keeps_rows_answers_and_frames_together() -> None:
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    tokens = np.arange(10)
    train, score = np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7, 8, 9])
    split = np.array([SELECT, TEST, TEST, TEST, TEST, TEST])
    view = TokenView(JOINT, "all", rows, np.array([0, 4, 6, 10]), train, tokens[train], score, 1)
    key = TokenKey(tokens[score], split, score * 10, score * 100, tokens, 3, 3, np.arange(50, 60))
    kept, known, scored = np.ones(10, bool), np.ones(10, bool), np.ones(10, bool)
    kept[[1, 4, 5, 9]] = known[2] = scored[7] = False
    smaller, answers = restricted(view, key, kept=kept, known=known, scored=scored)
    assert smaller.offsets.tolist() == [0, 3, 6]
    assert smaller.rows[smaller.train_rows].tolist() == rows[[0, 3]].tolist()
    assert smaller.rows[smaller.score_rows].tolist() == rows[[6, 8]].tolist()
    assert answers.score_tokens.tolist() == [6, 8]
    assert answers.score_document.tolist() == [60, 80]
    assert answers.rows.tolist() == [50, 52, 53, 56, 57, 58]
    with pytest.raises(NotMeasurableError):
        restricted(view, key, kept=kept, known=np.zeros(10, bool), scored=scored)
