"""Ladders read the doses that they need, keep each, and give the onset and break of the ladders read in full."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from auditor.calibration import Dose, Reading
from auditor.calibration.ladder import Ladder, build_ladder
from auditor.calibration.readings import DoseReading, Ladders
from auditor.plan import CalibrationSettings, DoseMode, Plan
from auditor.progress import silent
from auditor.store import Store

PLAN = Plan(calibration=CalibrationSettings(coverages=(0.02, 0.06, 0.1, 0.3, 1.0), repetitions=5))
SETTINGS = PLAN.calibration
METRICS = ("effect", "rare")


class Synthetic:
    """An instrument whose every repetition finds a leak from a coverage of its own on; it never falls with the dose."""

    modes: tuple[DoseMode, ...] = ("coordinate", "invariant")
    is_graded = True
    carrier = "rows"
    leak = "a number"

    def __init__(self, curves: np.ndarray, repetition: int, read: list[Dose | None]) -> None:
        """`curves` [metric, mode, event, repetition]: the coverage from which on the event is there."""
        self._from, self._all_read = curves[..., repetition], read

    def read(self, dose: Dose | None, seed: int) -> list[Reading]:
        del seed
        self._all_read.append(dose)
        return self.readings(dose)

    def readings(self, dose: Dose | None) -> list[Reading]:
        coverage, mode = (0.0, 0) if dose is None else (dose.coverage_ratio, self.modes.index(dose.mode))
        return [
            Reading(metric, "pp", 1.0, coverage, 0.0, 1.0, *(bool(coverage >= start) for start in self._from[n, mode]))
            for n, metric in enumerate(METRICS)
        ]


def make_curves(seed: int) -> np.ndarray:
    """Any thresholds, some undosed (0) and some at no dose (2); with no dose both modes read the same."""
    generator = np.random.default_rng(seed)
    curves = generator.choice([0.0, 0.02, 0.06, 0.1, 0.3, 1.0, 2.0], size=(2, 2, 2, 5), p=[0.05] + [0.15] * 5 + [0.2])
    curves[:, 1][curves[:, 0] == 0] = 0
    curves[:, 0][curves[:, 1] == 0] = 0
    return curves


def in_full(curves: np.ndarray) -> list[Ladder]:
    """The ladders of every dose read in every repetition."""
    ladders = []
    for mode in Synthetic.modes:
        doses = [None, *(Dose(coverage, 1.0, mode) for coverage in SETTINGS.coverages)]
        for number in range(len(METRICS)):
            readings = {
                dose.coverage_ratio if dose else 0.0: [
                    Synthetic(curves, repetition, []).readings(dose)[number]
                    for repetition in range(SETTINGS.repetitions)
                ]
                for dose in doses
            }
            ladders.append(
                build_ladder(readings, mode=mode, amplitude_ratio=1.0, repetitions=5, power_ratio=0.8, alpha=0.05)
            )
    return ladders


def kept(folder: Path | None = None) -> Store:
    return Store(folder, kinds={"reading": DoseReading})


def reader(curves: np.ndarray, read: list[Dose | None]) -> Callable[[int], Synthetic]:
    return lambda repetition: Synthetic(curves, repetition, read)


@pytest.mark.parametrize("seed", range(25))
def test_onset_and_break_are_those_of_the_ladder_read_in_full(seed: int) -> None:
    """With fewer readings, and bounds of the share that hold those of the whole ladder."""
    curves, read = make_curves(seed), list[Dose | None]()
    found = Ladders("a/b", reader(curves, read), PLAN, kept()).build(silent)
    assert len(read) < 55
    for mine, whole in zip(found, in_full(curves), strict=True):
        assert (mine.metric, mine.mode) == (whole.metric, whole.mode)
        assert mine.onset_coverage_ratio == whole.onset_coverage_ratio
        assert mine.break_coverage_ratio == whole.break_coverage_ratio
        for part, full in zip(mine.rungs, whole.rungs, strict=True):
            assert part.values == full.values[: part.num_readings]
            assert part.detected_lower_ratio <= full.detected_lower_ratio
            assert part.detected_upper_ratio >= full.detected_upper_ratio


def test_a_reading_that_is_kept_is_not_read_again_and_progress_counts(tmp_path: Path) -> None:
    """A run that was ended in the middle goes on behind its last reading and ends as one that was not."""
    curves, told = make_curves(3), list[tuple[str, int, int]]()
    whole = list[Dose | None]()
    expected = Ladders("a/b", reader(curves, whole), PLAN, kept()).build(lambda *now: told.append(now))
    assert told[0] == ("reading 1 of at most 55, no dose", 0, 55)
    assert re.match(r"reading 2 of at most 55 \(up to \d+ (s|min)\), no dose$", told[1][0])
    assert [done for _, done, _ in told] == list(range(len(whole)))

    def ended(label: str, done: int, total: int) -> None:
        del label, total
        if done == len(whole) // 2:
            raise KeyboardInterrupt

    store, first, second = kept(tmp_path), list[Dose | None](), list[Dose | None]()
    with pytest.raises(KeyboardInterrupt):
        Ladders("a/b", reader(curves, first), PLAN, store).build(ended)
    assert Ladders("a/b", reader(curves, second), PLAN, store).build(silent) == expected
    assert first + second == whole
