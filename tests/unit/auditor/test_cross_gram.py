"""The cross-Gram names tokens that neither hop alone shows, behind a rotation and a scale that both hops share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from auditor.attacks.base import Attack
from auditor.attacks.cross_gram import CrossGram
from auditor.attacks.latent_probe import LatentProbe
from auditor.audit import run_audit
from auditor.calibration import Dose
from auditor.calibration.token import CrossTokenInstrument
from auditor.channels import JOINT
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import Plan, ProbeSettings, StatisticsSettings
from auditor.scorers.cross_token import plant_cosines
from auditor.views.token import TokenView

FRAMES, ROWS, WIDTH, TOKENS = 120, 16, 12, 6
SETTINGS = ProbeSettings(restarts=1, epochs=20, batch_rows=128, probes=("coordinate_plus_invariants",))


def _view(leak: str) -> tuple[TokenView, NDArray[np.int64]]:
    generator = np.random.default_rng(2)
    tokens = generator.integers(0, TOKENS, (FRAMES, ROWS))
    forward, gradient = generator.normal(size=(2, FRAMES, ROWS, WIDTH))
    if leak == "cosine":
        gradient = plant_cosines(
            np.concatenate([forward, gradient], axis=-1).reshape(-1, 2 * WIDTH).astype(np.float32),
            tokens.reshape(-1), coverage_ratio=1.0, amplitude_ratio=1.0, seed=1,
        )[:, WIDTH:].reshape(forward.shape)  # fmt: skip
    if leak == "length":
        gradient *= 1.6 ** tokens[..., None]
    turns = np.linalg.qr(generator.normal(size=(FRAMES, WIDTH, WIDTH)))[0]
    scale = np.exp(generator.normal(size=(FRAMES, ROWS, 1)))
    rows = np.concatenate([scale * forward @ turns, gradient @ turns / scale], axis=-1)
    flat = tokens.reshape(-1)
    half = len(flat) // 2
    offsets = np.arange(0, len(flat) + 1, ROWS)
    train, score = np.arange(half), np.arange(half, len(flat))
    rows_MW = rows.reshape(-1, 2 * WIDTH).astype(np.float32)
    return TokenView(JOINT, "all", rows_MW, offsets, train, flat[:half], score, 3), flat


def _accuracy(attack: Attack, leak: str) -> dict[str, float]:
    view, tokens = _view(leak)
    found = {}
    for arm in attack.run(view, SETTINGS, lambda *_: None):
        arm.fit(lambda _: None)
        hits = [
            arm.classes[values.argmax(1)] == tokens[view.score_rows[places]]
            for places, values in arm.log_probabilities()
        ]
        found[arm.name] = float(np.concatenate(hits).mean())
    return found


def test_a_cosine_between_the_hops_is_read_where_the_joint_probe_sees_nothing() -> None:
    """Chance is .167, its standard error .012."""
    found = _accuracy(CrossGram(), "cosine")
    assert found["cosine"] > 0.35
    assert max(_accuracy(LatentProbe(), "cosine").values()) < 0.25


def test_the_product_of_lengths_is_read_behind_a_scale() -> None:
    found = _accuracy(CrossGram(), "length")
    assert found["norm_product"] > 0.3
    assert found["cosine"] < 0.25


def test_noise_names_no_token() -> None:
    assert max(_accuracy(CrossGram(), "none").values()) < 0.21


def test_planted_cosines_are_nested_keep_norms_and_leave_forward_rows_alone() -> None:
    generator = np.random.default_rng(3)
    rows, tokens = generator.normal(size=(300, 8)).astype(np.float32), generator.integers(-1, 5, 300)

    def dose(coverage: float, amplitude: float = 1.0) -> NDArray[np.float32]:
        return plant_cosines(rows, tokens, coverage_ratio=coverage, amplitude_ratio=amplitude, seed=1)

    assert np.array_equal(dose(0.0), rows)
    assert np.array_equal(dose(0.5, 0.0), rows)
    small, large = dose(0.1), dose(0.4)
    changed = np.any(small != rows, axis=1)
    assert changed.sum() == round(0.1 * (tokens >= 0).sum())
    assert np.array_equal(small[changed], large[changed])
    assert np.array_equal(large[:, :4], rows[:, :4])
    np.testing.assert_allclose(np.linalg.norm(large, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)


def test_an_audit_finds_the_control_and_no_leak_in_noise(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=200)
    plan = Plan(
        name="cross", attacks=("cross_gram",), families=(JOINT,), scope=(JOINT,),
        statistics=StatisticsSettings(repetitions=300),
        probe=ProbeSettings(epochs=10, batch_rows=128, control_coverage_ratio=0.5),
    )  # fmt: skip
    report = run_audit([run.bundle], key=run.key, plan=plan)
    result = report["results"][0]
    assert result["controls"][0]["found"]
    assert [arm["name"] for arm in result["details"]["arms"]] == ["cosine", "raw", "norm_product"]
    assert all(arm["twin"] is not None for arm in result["details"]["arms"])
    assert all(check["state"] != "fail" for check in result["checks"])
    assert result["twin"]["lower_pp"] is None or result["twin"]["lower_pp"] < 0


@pytest.mark.parametrize("family", ["forward_only", "gradient_only"])
def test_one_hop_has_no_cross_gram(family: str) -> None:
    assert family not in CrossGram().families


def test_the_instrument_reads_a_dose_of_cosines_and_a_zero_dose_as_no_dose(make_run: Callable[..., Any]) -> None:
    run = make_run(gradient="hidden", frames=100)
    plan = Plan(
        name="cross", attacks=("cross_gram",), families=(JOINT,), scope=(JOINT,),
        statistics=StatisticsSettings(repetitions=200), probe=ProbeSettings(epochs=8, batch_rows=64),
    )  # fmt: skip
    with opened_material(open_evidence([run.bundle], key=run.key), plan, lambda *_: None) as opened:
        instrument = CrossTokenInstrument(CrossGram(), opened.material, JOINT, plan)
        assert instrument.read(Dose(0.0, 1.0, "invariant"), 1) == instrument.read(None, 1)
        effect = instrument.read(Dose(1.0, 1.0, "invariant"), 1)[1]
    assert effect.metric == "token_top1_effect"
    assert effect.breaks
