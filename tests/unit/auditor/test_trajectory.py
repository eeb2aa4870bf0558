"""What weights and moments tell of the documents that trained: a planted bias is found, a clean trajectory is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditor.attacks.trajectory import TrajectoryProperty
from auditor.calibration import Dose
from auditor.calibration.state import TrajectoryInstrument
from auditor.channels import STATEFUL_REMOTE_STATE
from auditor.evidence.inputs import open_evidence
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import split_capture
from auditor.plan import Plan, StatisticsSettings
from auditor.progress import silent
from auditor.results import Result
from auditor.scorers.trajectory import read_property, score_trajectory
from auditor.views.base import NotMeasurableError
from auditor.views.trajectory import document_properties, read_trajectory, trajectory_view
from splitwire.bundles import SnapshotWriter
from splitwire.errors import BundleError

SESSION = "5e55107a5e55107a"
SIZES = {"gain": 3, "weight": 80}
BETA1, BETA2 = 0.9, 0.999
PLAN = Plan(statistics=StatisticsSettings(repetitions=150))
NUM_STEPS = 240


def write_snapshots(folder: Path, *, high: np.ndarray, bias: float, every: int = 1, seed: int = 3) -> Path:
    """AdamW's moments under gradients of unit noise; steps (from 1) whose `high` is true have a bias added."""
    generator = np.random.default_rng(seed)
    direction = {name: generator.normal(size=size) for name, size in SIZES.items()}
    weights = {name: np.zeros(size) for name, size in SIZES.items()}
    first = {name: np.zeros(size) for name, size in SIZES.items()}
    second = {name: np.zeros(size) for name, size in SIZES.items()}
    writer = SnapshotWriter(
        folder,
        session_hash=SESSION,
        every_steps=every,
        stack={"stack": "gram"},
        optimizer={"beta1": BETA1, "beta2": BETA2},
        settings={},
    )
    for step in range(len(high) + 1):
        for name, size in SIZES.items() if step else ():
            gradient = generator.normal(size=size) + bias * high[step - 1] * direction[name]
            first[name] = BETA1 * first[name] + (1 - BETA1) * gradient
            second[name] = BETA2 * second[name] + (1 - BETA2) * gradient**2
            weights[name] = weights[name] - 0.01 * first[name] / np.sqrt(second[name] + 1e-8)
        if step % every == 0:
            tensors = {f"parameter.{name}": values.astype(np.float32) for name, values in weights.items()}
            if step:
                tensors |= {f"optimizer.exp_avg.{name}": values.astype(np.float32) for name, values in first.items()}
                tensors |= {f"optimizer.exp_avg_sq.{name}": v.astype(np.float32) for name, v in second.items()}
            writer.write(tensors, optimizer_step=step, last_step=step)
    writer.close()
    return folder


Open = Callable[..., Material]


@pytest.fixture(scope="module")
def opened(make_run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """opened(bias=...) -> material of one run of a document a step with its snapshots; made once for each choice."""
    run = make_run(frames=NUM_STEPS, documents=60, gradient="none", rows=8, real=3)
    folder = tmp_path_factory.mktemp("trajectory")
    bare = _material([run.bundle], run, folder / "bare")
    made = {"bare": bare}
    share = document_properties(bare.capture)["rare_tokens"][bare.capture.items.document]

    def make(*, bias: float = 0.0, every: int = 1) -> Material:
        name = f"{bias:g}-{every}" if every else "bare"
        if name not in made:
            snapshots = write_snapshots(folder / f"s-{name}", high=share > np.median(share), bias=bias, every=every)
            made[name] = _material([run.bundle, snapshots], run, folder / f"capture-{name}")
        return made[name]

    yield make
    for material in made.values():
        material.capture.close()


def _material(folders: list[Path], run: Any, work: Path) -> Material:
    evidence = open_evidence(folders, key=run.key)
    work.mkdir()
    capture = read_capture(evidence.bundles, evidence.truths, compute_modes=PLAN.compute_modes, folder=work)
    return Material(capture, split_capture(capture, PLAN.split), evidence.bundles, evidence.truths)


def _score(material: Material) -> Result:
    return score_trajectory(TrajectoryProperty(), material, STATEFUL_REMOTE_STATE, PLAN, silent)


def test_a_bias_of_steps_with_the_property_is_found(opened: Open) -> None:
    """A bias of half a gradient's length fails the check; the twin whose answers moved reads nothing."""
    result = _score(opened(bias=0.5))
    (check,) = result.checks
    assert check.metric == "rare_tokens_property_auc"
    assert check.state == "fail"
    assert check.value is not None
    assert check.value > 0.9
    assert result.details["rare_tokens"]["twin_lower_ratio"] < 0.5


def test_a_clean_trajectory_is_at_chance_and_its_control_is_found(opened: Open) -> None:
    """So silence means something: the same attack finds the planted bias, and noise alone reads nothing."""
    result = _score(opened())
    (check,) = result.checks
    assert check.state != "fail"
    assert check.lower is not None
    assert check.lower < 0.5
    assert [control.found for control in result.controls] == [True]
    assert abs(result.details["rare_tokens"]["noise_auc_ratio"] - 0.5) < 0.15
    assert check.minimum_detectable is not None


def test_gradients_are_recovered_from_the_moments(opened: Open) -> None:
    """With a snapshot a step, exactly: a small tensor's columns are its gradient."""
    view = read_trajectory(opened(), STATEFUL_REMOTE_STATE, PLAN, silent).view
    assert view.gradient.shape == (NUM_STEPS, 3 + 32)
    generator = np.random.default_rng(3)
    for size in SIZES.values():
        generator.normal(size=size)
    gains = []
    for _ in range(NUM_STEPS):
        gains.append(generator.normal(size=3))
        generator.normal(size=80)
    assert np.allclose(view.gradient[:, :3], gains, atol=1e-4)


def test_several_steps_an_interval_and_doses(opened: Open) -> None:
    """A zero dose changes nothing, and a larger one reads more."""
    material = opened(every=2)
    values = document_properties(material.capture)["rare_tokens"]
    trajectory = read_trajectory(material, STATEFUL_REMOTE_STATE, PLAN, silent)
    view, key = trajectory_view(trajectory, material, values)
    assert len(key.high) == NUM_STEPS // 2
    attack, high = TrajectoryProperty(), np.flatnonzero(key.high)
    plain = read_property(attack, view, key, PLAN)[1]
    assert read_property(attack, view.with_bias(high, 0.0, 1), key, PLAN)[1] == plain
    planted = read_property(attack, view.with_bias(high, 0.5, 1), key, PLAN)[1]
    assert planted.auc_ratio is not None
    assert plain.auc_ratio is not None
    assert planted.auc_ratio > plain.auc_ratio + 0.1


def test_its_instrument_reads_what_the_scorer_does(opened: Open) -> None:
    """Without a dose and at a dose of zero, number for number; a full dose is found."""
    material, attack = opened(), TrajectoryProperty()
    (check,) = score_trajectory(attack, material, STATEFUL_REMOTE_STATE, PLAN, silent).checks
    instrument = TrajectoryInstrument(attack, material, STATEFUL_REMOTE_STATE, PLAN)
    (plain,) = instrument.read(None, 1)
    assert (plain.metric, plain.value, plain.lower) == (check.metric, check.value, check.lower)
    assert instrument.read(Dose(0.5, 0.0, "coordinate"), 1) == [plain]
    assert instrument.read(Dose(1.0, 0.5, "coordinate"), 1)[0].breaks


def test_missing_snapshots_say_what_to_do(opened: Open) -> None:
    """And so do too few of them."""
    with pytest.raises(NotMeasurableError, match="--snapshot-every"):
        _score(opened(every=0))


def test_few_snapshots_say_what_to_do(opened: Open) -> None:
    """Intervals are the unit; a handful tells nothing."""
    with pytest.raises(NotMeasurableError, match="lower --snapshot-every"):
        _score(opened(every=60))


def test_snapshots_that_cannot_be_are_refused(make_run: Callable[..., Any], tmp_path: Path) -> None:
    """The untrusted node writes them: tensors that change their shape, and values that are no numbers."""
    run = make_run(frames=20, gradient="none")
    for number, odd in enumerate((np.ones(4, np.float32), np.full(3, np.nan, np.float32))):
        folder = tmp_path / f"odd-{number}"
        writer = SnapshotWriter(folder, session_hash=SESSION, every_steps=1, stack={}, optimizer={}, settings={})
        for step in range(10):
            values = odd if step == 9 else np.ones(3, np.float32)
            writer.write({"parameter.gain": values}, optimizer_step=step, last_step=step)
        writer.close()
        material = _material([run.bundle, folder], run, tmp_path / f"work-{number}")
        with pytest.raises(BundleError, match="not finite"):
            _score(material)
        material.capture.close()
