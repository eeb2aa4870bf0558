"""Membership from frames alone: a block seen before is known again under fresh gauges, and fresh noise hides it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from auditor.attacks.frame_matching import FrameMatching
from auditor.calibration import Dose
from auditor.calibration import state as instruments
from auditor.calibration.state import FrameMembershipInstrument
from auditor.evidence.splits import split_documents
from auditor.plan import Plan, SplitSettings, StatisticsSettings
from auditor.scorers import frame_membership as scorer
from auditor.scorers.membership import read_members
from auditor.views.frame_membership import FrameMembershipView
from auditor.views.membership import MembershipKey
from auditor.views.units import UnitKey

PLAN = Plan(statistics=StatisticsSettings(repetitions=200))
COUNT, ROWS, WIDTH = 120, 12, 6
ATTACK = FrameMatching()
Game = tuple[FrameMembershipView, MembershipKey]


def game(*, gauge: bool, noise: float, has_gauge: bool = True, decoys: int = 0) -> Game:
    """Every candidate's block crosses once at the end, and once before that if it is a member."""
    generator = np.random.default_rng(4)
    member = generator.random(COUNT) < 0.5
    block = generator.normal(size=(COUNT, ROWS, WIDTH))

    def cross(number: int) -> np.ndarray:
        real = block[number] + noise * generator.normal(size=(ROWS, WIDTH))
        rows = np.concatenate([real, generator.normal(size=(decoys, WIDTH)) * (1 + noise**2) ** 0.5])
        if gauge:
            rows = generator.permutation(rows @ np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0])
        return rows.astype(np.float32)

    trained = [cross(int(number)) for number in generator.permutation(np.flatnonzero(member))]
    split = split_documents([f"doc-{n}" for n in range(COUNT)], SplitSettings())
    known = np.flatnonzero(split == 0)
    frames = [cross(number) for number in range(COUNT)]
    view = FrameMembershipView(
        "membership_property", COUNT, np.arange(COUNT), frames, trained, known, member[known], has_gauge
    )
    return view, MembershipKey(UnitKey(member, split, np.arange(COUNT)), np.zeros(COUNT, bool))


def lower_bound(found: Game) -> float:
    view, key = found
    bound = read_members(ATTACK.measures(view, ATTACK.nearest(view)), key, PLAN)[1].lower_ratio
    assert bound is not None
    return bound


@pytest.mark.parametrize(
    "leaking",
    [
        {"gauge": False, "noise": 0.05, "has_gauge": False},
        {"gauge": False, "noise": 0.05},
        {"gauge": True, "noise": 0.05},
        {"gauge": True, "noise": 0.0, "decoys": 12},
    ],
)
def test_blocks_that_were_seen_before_are_found(leaking: dict[str, float]) -> None:
    """In place, in one gauge, under fresh gauges, and among fresh decoys: far above the ceiling."""
    assert lower_bound(game(**leaking)) > 0.8  # type: ignore[arg-type]


def test_fresh_noise_of_the_size_of_the_rows_hides_them_under_fresh_gauges() -> None:
    """By every reading, or the one that is chosen would tell."""
    assert lower_bound(game(gauge=True, noise=1.0)) < 0.5


def test_a_clean_game_is_scored_as_clean_and_its_controls_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh gauges and noise: no fail, both planted leaks found, a twin at chance, and the leaking game fails."""
    material = SimpleNamespace()
    for found, expected in ((game(gauge=True, noise=1.0), "inconclusive"), (game(gauge=True, noise=0.05), "fail")):
        monkeypatch.setattr(scorer, "frame_membership_view", lambda *_, found=found: found)
        result = scorer.score_frame_membership(ATTACK, material, "membership_property", PLAN, lambda *_: None)  # type: ignore[arg-type]
        area, rate = result.checks
        assert (area.metric, rate.metric) == ("membership_auc", "membership_tpr_at_1_percent_fpr")
        assert area.state == expected
        assert [control.found for control in result.controls] == [True, True]
        lower = result.twin["lower_ratio"]
        assert lower is not None
        assert lower < 0.5


def test_its_instrument_reads_what_the_scorer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a dose and at a dose of zero, number for number; a full dose is found, and a half one reads less."""
    found = game(gauge=True, noise=1.0)
    monkeypatch.setattr(instruments, "frame_membership_view", lambda *_: found)
    instrument = FrameMembershipInstrument(ATTACK, SimpleNamespace(), "membership_property", PLAN)  # type: ignore[arg-type]
    plain = instrument.read(None, 1)
    assert plain[0].lower == lower_bound(found)
    assert instrument.read(Dose(0.0, 1.0, "invariant"), 1) == plain == instrument.read(Dose(1.0, 0.0, "invariant"), 1)
    for mode in ("coordinate", "invariant"):
        full, half = (instrument.read(Dose(coverage, 0.999, mode), 1)[0] for coverage in (1.0, 0.5))
        assert full.breaks
        assert full.value is not None
        assert half.value is not None
        assert plain[0].value is not None
        assert full.value > half.value > plain[0].value
