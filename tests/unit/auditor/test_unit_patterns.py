"""Partition by whole rows: each attack finds a leak that its neighbours miss, and none finds one in noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from auditor.attacks.base import Attack
from auditor.attacks.gram_pattern import GramPattern, pair_features
from auditor.attacks.norm_product import NormProduct
from auditor.attacks.row_norm import RowNorm
from auditor.attacks.sign_pattern import SignPattern
from auditor.audit import run_audit
from auditor.calibration import Dose
from auditor.calibration.patterns import PartitionRowsInstrument
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import Plan, StatisticsSettings
from auditor.scorers.planting import plant_direction
from auditor.statistics.auc import plain_auc
from auditor.views.unit_rows import UnitRowsView
from auditor.views.units import UnitView

FRAMES, ROWS, REAL, WIDTH = 160, 20, 8, 10
Array = NDArray[np.float64]


def _rotate(rows_FRD: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    turns = np.linalg.qr(generator.normal(size=(len(rows_FRD), WIDTH, WIDTH)))[0]
    return rows_FRD @ turns, turns


def _hops(leak: str) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Forward and gradient rows [F, R, D], and which are real [F, R]."""
    generator = np.random.default_rng(3)
    real = np.argsort(generator.random((FRAMES, ROWS)), axis=1) < REAL
    forward, gradient = generator.normal(size=(2, FRAMES, ROWS, WIDTH))
    if leak == "mean":
        forward += 0.6 * real[..., None]
        forward /= np.linalg.norm(forward, axis=-1, keepdims=True)
    if leak == "resemblance":
        forward += 1.2 * real[..., None] * generator.normal(size=(FRAMES, 1, WIDTH))
        forward = _rotate(forward / np.linalg.norm(forward, axis=-1, keepdims=True), generator)[0]
    if leak == "parallel":
        gradient += 0.8 * real[..., None] * forward
        forward, turns = _rotate(forward / np.linalg.norm(forward, axis=-1, keepdims=True), generator)
        gradient = gradient / np.linalg.norm(gradient, axis=-1, keepdims=True) @ turns
    if leak == "scaled":
        scale = np.exp(1.5 * generator.normal(size=(FRAMES, ROWS, 1)))
        gradient *= 1 + real[..., None]
        forward, gradient = forward * scale, gradient / scale
    return forward, gradient, real


def _auc(attack: Attack, leak: str, family: str) -> float:
    """AUC of the best reading on the second half of the frames."""
    forward, gradient, real = _hops(leak)
    both = np.concatenate([forward, gradient], axis=-1)
    rows = {FORWARD_ONLY: forward, GRADIENT_ONLY: gradient, JOINT: both}[family].reshape(FRAMES * ROWS, -1)
    group, flat = np.repeat(np.arange(FRAMES), ROWS), real.reshape(-1)
    train = np.arange(len(flat) // 2)
    norms = np.linalg.norm(forward, axis=-1).reshape(-1), np.linalg.norm(gradient, axis=-1).reshape(-1)
    norm = {FORWARD_ONLY: norms[0], GRADIENT_ONLY: norms[1], JOINT: norms[0] * norms[1]}[family]
    view: Any = UnitRowsView(family, rows.astype(np.float32), group, train, flat[train], 1)
    if attack.question == "partition":
        view = UnitView(family, norm, group, train, flat[train], 1)
    readings = attack.run(view, None, lambda *_: None)
    test = slice(len(flat) // 2, None)
    return max(plain_auc(reading.scores[test], flat[test]) or 0.0 for reading in readings)


@pytest.mark.parametrize(
    ("leak", "attack", "family", "blind"),
    [
        ("mean", SignPattern(), FORWARD_ONLY, [(RowNorm(), FORWARD_ONLY), (GramPattern(), GRADIENT_ONLY)]),
        ("resemblance", GramPattern(), FORWARD_ONLY, [(RowNorm(), FORWARD_ONLY), (SignPattern(), FORWARD_ONLY)]),
        ("parallel", GramPattern(), JOINT, [(GramPattern(), FORWARD_ONLY), (GramPattern(), GRADIENT_ONLY)]),
        ("scaled", NormProduct(), JOINT, [(RowNorm(), FORWARD_ONLY), (RowNorm(), GRADIENT_ONLY)]),
    ],
    ids=["mean", "resemblance", "parallel", "scaled"],
)
def test_each_attack_finds_what_the_others_miss(
    leak: str, attack: Attack, family: str, blind: list[tuple[Attack, str]]
) -> None:
    found = _auc(attack, leak, family)
    assert found > 0.75
    for other, other_family in blind:
        assert _auc(other, leak, other_family) < found - 0.12


@pytest.mark.parametrize(
    ("attack", "family"),
    [
        (SignPattern(), FORWARD_ONLY),
        (GramPattern(), GRADIENT_ONLY),
        (GramPattern(), JOINT),
        (NormProduct(), JOINT),
    ],
)
def test_noise_reads_as_chance(attack: Attack, family: str) -> None:
    """1,600 units: the standard error of an AUC is .015, and the best of two or three readings is taken."""
    assert abs(_auc(attack, "none", family) - 0.5) < 0.06


def test_the_cross_gram_is_the_same_behind_a_shared_rotation_and_the_cosine_form_behind_a_scale_too() -> None:
    generator = torch.Generator().manual_seed(4)
    forward, gradient = torch.randn(2, 12, 6, generator=generator)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    scale = torch.rand(12, 1, generator=generator) + 0.5
    plain = torch.cat([forward, gradient], dim=1)
    turned = torch.cat([forward @ turn, gradient @ turn], dim=1)
    scaled = torch.cat([forward * scale, gradient / scale], dim=1)
    for form in ("cosine", "raw"):
        wanted = pair_features(plain, [0, 5, 12], form, JOINT)
        torch.testing.assert_close(pair_features(turned, [0, 5, 12], form, JOINT), wanted, rtol=1e-4, atol=1e-5)
    wanted = pair_features(plain, [0, 12], "cosine", JOINT)
    torch.testing.assert_close(pair_features(scaled, [0, 12], "cosine", JOINT), wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(pair_features(scaled, [0, 12], "raw", JOINT), pair_features(plain, [0, 12], "raw", JOINT))


def test_a_planted_direction_keeps_norms_and_decoys_and_zero_of_it_keeps_everything() -> None:
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(200, 6)).astype(np.float32)
    real = generator.random(200) < 0.5
    planted = plant_direction(rows, real, coverage_ratio=0.3, amplitude_ratio=1.0, seed=1, num_parts=2)
    changed = np.any(planted != rows, axis=1)
    assert changed.sum() == round(0.3 * real.sum())
    assert not changed[~real].any()
    np.testing.assert_allclose(np.linalg.norm(planted, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)
    for coverage, amplitude in ((0.0, 1.0), (0.3, 0.0)):
        same = plant_direction(rows, real, coverage_ratio=coverage, amplitude_ratio=amplitude, seed=1)
        assert np.array_equal(same, rows)


ATTACKS = ("sign_pattern", "gram_pattern", "norm_product")


def _plan() -> Plan:
    families = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    statistics = StatisticsSettings(repetitions=300)
    return Plan(name="patterns", attacks=ATTACKS, families=families, scope=families, statistics=statistics)


def test_hidden_rows_lie_under_the_ceiling_and_every_control_is_found(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=900)
    report = run_audit([run.bundle], key=run.key, plan=_plan())
    assert len(report["results"]) == 6
    for result in report["results"]:
        assert all(control["found"] for control in result["controls"])
        check = result["checks"][0]
        assert check["upper"] < check["ceiling"]
        assert {reason["kind"] for reason in check["reasons"]} <= {"instrument"}  # that it is not calibrated
        assert result["twin"]["auc_ratio"] == pytest.approx(0.5, abs=0.05)
        assert all(abs(reading["twin_auc_ratio"] - 0.5) < 0.05 for reading in result["details"]["readings"])


@pytest.mark.parametrize("transformer", [False, True], ids=["gram", "transformer"])
def test_open_gradients_fail_in_every_family_that_has_them(make_run: Callable[..., Any], transformer: bool) -> None:
    run = make_run(gradient="open", frames=200, transformer=transformer)
    report = run_audit([run.bundle], key=run.key, plan=_plan())
    states = {(r["attack"], r["family"]): r["checks"][0]["state"] for r in report["results"]}
    assert states["gram_pattern", GRADIENT_ONLY] == "fail"
    assert states["norm_product", JOINT] == "fail"
    assert states["gram_pattern", FORWARD_ONLY] != "fail"
    assert states["sign_pattern", FORWARD_ONLY] != "fail"


@pytest.mark.parametrize("attack", [SignPattern(), GramPattern()], ids=lambda attack: attack.name)
def test_the_instrument_reads_doses_and_a_zero_dose_as_no_dose(make_run: Callable[..., Any], attack: Attack) -> None:
    """Directions of their own in every frame are read by the Gram pattern alone."""
    run = make_run(gradient="none", frames=150)
    with opened_material(open_evidence([run.bundle], key=run.key), _plan(), lambda *_: None) as opened:
        instrument = PartitionRowsInstrument(attack, opened.material, FORWARD_ONLY, _plan())
        nothing = instrument.read(None, 1)
        assert instrument.read(Dose(0.0, 1.0, "coordinate"), 1) == nothing
        shared, turned = (instrument.read(Dose(0.6, 1.0, mode), 1)[0] for mode in ("coordinate", "invariant"))
    assert not nothing[0].breaks
    assert shared.breaks
    assert turned.breaks == (attack.name == "gram_pattern")
