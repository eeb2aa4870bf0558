"""Dose ladders of synthetic bundles: a zero dose changes nothing, a large one is found, and the file says which."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor.attacks import ATTACKS
from auditor.calibration import INSTRUMENTS, Dose
from auditor.calibration.base import Reading
from auditor.calibration.files import JSON_FILE, read_calibration, write_calibration
from auditor.calibration.ladder import build_ladder
from auditor.calibration.run import bounded, run_calibration
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import CalibrationSettings, Plan, ProbeSettings, SplitSettings, StatisticsSettings
from auditor.progress import silent
from auditor.scorers import SCORERS
from auditor.scorers.planting import plant
from splitwire.errors import SettingsError

FAMILY = {
    "token": ("latent_probe", "forward_only"),
    "partition": ("row_norm", "gradient_only"),
    "support": ("gradient_support", "gradient_only"),
    "linkage": ("linkage", "accumulated_history"),
}
SMALL = Plan(
    name="small",
    scope=("forward_only",),
    families=("forward_only",),
    attacks=("latent_probe",),
    statistics=StatisticsSettings(repetitions=200),
    split=SplitSettings(train_ratio=0.4),
    probe=ProbeSettings(probes=("coordinate_plus_invariants",), restarts=1, epochs=6, batch_rows=128),
    calibration=CalibrationSettings(coverages=(0.1, 1.0), modes=("coordinate",), repetitions=2),
)
CHEAP = dataclasses.replace(
    SMALL,
    attacks=("gradient_support", "row_norm", "linkage"),
    families=("gradient_only", "accumulated_history"),
    calibration=CalibrationSettings(coverages=(0.05, 0.5, 1.0), repetitions=3),
)


@pytest.mark.parametrize("question", FAMILY)
def test_a_zero_dose_reads_what_no_dose_and_the_audit_read(make_run: Callable[..., Any], question: str) -> None:
    """Number for number, in both modes: nothing but the dose may differ from the audit."""
    run = make_run(frames=100, gradient="clip_noise", leak=0.5)
    name, family = FAMILY[question]
    evidence = open_evidence([run.bundle], key=run.key)
    with opened_material(evidence, SMALL, silent) as opened:
        instrument = INSTRUMENTS[question](ATTACKS[name], opened.material, family, SMALL)
        undosed = instrument.read(None, 1)
        for dose in (Dose(0.0, 1.0, "coordinate"), Dose(0.7, 0.0, instrument.modes[-1])):
            assert instrument.read(dose, 5) == undosed
        checks = SCORERS[question](ATTACKS[name], opened.material, family, SMALL, silent).checks
    assert [dataclasses.astuple(reading)[:6] for reading in undosed] == [
        (check.metric, check.unit, check.ceiling, check.value, check.lower, check.upper) for check in checks
    ]


def test_an_onset_is_a_rung_from_which_on_every_rung_is_found() -> None:
    """A lucky low rung is no onset; a share of exactly the power is enough; what is found undosed is zero."""

    def ladder(*found: int) -> Any:
        def reading(number: int, count: int) -> Reading:
            return Reading("m", "pp", 1.0, float(number), 0.0, 1.0, number < count, number < count - 1)

        readings = {rung / 10: [reading(n, count) for n in range(5)] for rung, count in enumerate(found)}
        return build_ladder(readings, mode="invariant", amplitude_ratio=1.0, repetitions=5, power_ratio=0.8, alpha=0.05)

    assert ladder(0, 5, 1, 4, 5).onset_coverage_ratio == 0.3
    assert ladder(0, 5, 1, 4, 5).break_coverage_ratio == 0.4
    assert ladder(0, 1, 3).onset_coverage_ratio is None
    assert ladder(4, 4, 5).onset_coverage_ratio == 0.0
    rung = ladder(0, 0, 4).rungs[2]
    assert (rung.num_detected, rung.num_readings, rung.num_broken) == (4, 5, 3)
    assert rung.detected_lower_ratio == pytest.approx(0.34259, abs=1e-5)  # the 5 % point of Beta(4, 2)
    assert rung.detected_upper_ratio == pytest.approx(0.98979, abs=1e-5)  # the 95 % point of Beta(5, 1)


def test_a_token_leak_is_found_from_some_dose_on_and_not_without_one(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=150, gradient="none")
    told = list[tuple[str, int, int]]()
    tree = run_calibration([run.bundle], key=run.key, plan=SMALL, progress=lambda *now: told.append(now))
    assert ("1/1 latent_probe on forward_only: less than a minute left, reading 1 of at most 6, no dose", 0, 6) in told
    ladders = {ladder["metric"]: ladder for ladder in tree["calibrated"][0]["ladders"]}
    effect = ladders["token_top1_effect"]
    assert effect["rungs"][0]["num_detected"] == 0
    assert effect["onset_coverage_ratio"] in (0.1, 1.0)
    assert effect["break_coverage_ratio"] == 1.0
    assert effect["rungs"][-1]["values"][0] > 20


def test_partition_support_and_linkage_have_ladders(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=240, gradient="hidden")
    tree = run_calibration([run.bundle], key=run.key, plan=CHEAP)
    assert tree["not_calibrated"] == []
    found = {part["question"]: part["ladders"][0] for part in tree["calibrated"]}
    assert set(found) == {"support", "partition", "linkage"}
    assert found["support"]["onset_coverage_ratio"] == 0.05
    for question in ("partition", "linkage"):
        assert found[question]["rungs"][0]["num_detected"] <= 1
        assert found[question]["onset_coverage_ratio"] in (0.5, 1.0)
        assert found[question]["break_coverage_ratio"] in (0.5, 1.0)


def test_the_same_input_gives_the_same_bytes_and_what_is_finished_is_not_done_again(
    make_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(frames=60, gradient="hidden")
    trees = [run_calibration([run.bundle], key=run.key, plan=CHEAP) for _ in range(2)]
    texts = [write_calibration(tree, tmp_path / str(n))[0].read_bytes() for n, tree in enumerate(trees)]
    assert texts[0] == texts[1]
    assert b"NaN" not in texts[0]
    kept = run_calibration([run.bundle], key=run.key, plan=CHEAP, parts=tmp_path / "parts")
    monkeypatch.setattr("auditor.calibration.run.calibrate", None)
    again = run_calibration([run.bundle], key=run.key, plan=CHEAP, parts=tmp_path / "parts")
    assert json.dumps(again) == json.dumps(kept) == json.dumps(trees[0])
    with pytest.raises(SettingsError, match="plan_hash"):
        run_calibration([run.bundle], key=run.key, plan=SMALL, parts=tmp_path / "parts")


def test_a_page_shows_every_metric_and_a_changed_file_is_refused(make_run: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(frames=60, gradient="hidden")
    tree = run_calibration([run.bundle], key=run.key, plan=CHEAP)
    file, page = write_calibration(tree, tmp_path)
    text = page.read_text()
    assert text.count("<svg") == 3
    rungs = [rung for part in tree["calibrated"] for ladder in part["ladders"] for rung in ladder["rungs"]]
    unread = [rung for rung in rungs if not rung["num_readings"]]
    partly = [rung for rung in rungs if rung["num_readings"] and rung["detection"] not in ("found", "missed")]
    assert text.count('unread" d=') == len(unread)
    assert text.count(' part" cx=') == len(partly)
    assert unread or partly
    assert "inferred, " in text
    assert "http" not in text.replace("http-equiv", "")
    calibration = read_calibration(tmp_path)
    assert calibration.plan_hash == CHEAP.hash
    assert calibration.find("row_norm", "gradient_only") is not None
    assert calibration.find("row_norm", "forward_only") is None
    better = json.loads(json.dumps(tree["calibrated"]))
    better[0]["ladders"][0]["break_coverage_ratio"] = 0.01  # no rung of it says so
    for change in ({"schema": "splitwire.calibration/0"}, {"calibrated": [{}]}, {"calibrated": better}):
        file.write_text(json.dumps(tree | change))
        with pytest.raises(SettingsError, match=r"schema|damaged"):
            read_calibration(tmp_path / JSON_FILE)


def test_the_limits_of_a_calibration_only_ever_narrow_the_plan() -> None:
    plan = Plan(probe=ProbeSettings(max_frames=100, restarts=3))
    assert bounded(plan).probe.max_frames == 100
    assert bounded(Plan()).probe.max_frames == 400
    assert bounded(plan).probe.restarts == 1
    assert (bounded(plan).history.max_frames, bounded(plan).response.max_frames) == (400, 400)
    assert bounded(dataclasses.replace(Plan(), calibration=CalibrationSettings(max_frames=0))).probe.max_frames == 0


def test_invariant_codes_keep_their_cosines_and_change_their_directions() -> None:
    """A code turned per frame is another vector in every frame; the cosine of two codes is the same in all."""
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(60, 16)).astype(np.float32)
    tokens = np.tile([0, 1, 2, 3, 4, -1], 10)
    offsets = np.arange(0, 61, 6)
    dosed = plant(rows, tokens, coverage_ratio=1.0, amplitude_ratio=1.0, seed=1, offsets=offsets)
    unit = (dosed / np.linalg.norm(dosed, axis=1, keepdims=True)).reshape(10, 6, 16)[:, :5]
    grams = unit @ unit.transpose(0, 2, 1)
    np.testing.assert_allclose(grams, np.broadcast_to(grams[0], grams.shape), atol=1e-5)
    assert np.abs((unit[0] * unit[1]).sum(-1)).max() < 0.95
    np.testing.assert_allclose(np.linalg.norm(dosed, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)
    few = plant(rows, tokens, coverage_ratio=0.3, amplitude_ratio=1.0, seed=1, offsets=offsets)
    changed = np.any(few != rows, axis=1)
    assert changed.sum() == 15
    np.testing.assert_array_equal(few[changed], dosed[changed])
