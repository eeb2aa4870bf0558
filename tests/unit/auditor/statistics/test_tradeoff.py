"""The published defence score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from auditor.statistics.tradeoff import defence_score
from splitwire.errors import SettingsError

CASES = json.loads((Path(__file__).parents[3] / "vectors" / "dcs.json").read_text())["cases"]


def test_every_published_row_is_reproduced_to_what_its_inputs_allow() -> None:
    """The table prints three digits, of the score and of its inputs: 1e-9 cannot be asked of it, .001 can."""
    assert len(CASES) == 36
    for case in CASES:
        found = defence_score(case["undefended_mp"], case["mp"], case["ap"])
        assert found == pytest.approx(case["dcs"], abs=0.001), case


def test_no_attack_and_no_loss_score_one_and_a_better_task_gives_no_credit() -> None:
    assert defence_score(0.5, 0.5, 0.0) == 1.0
    assert defence_score(0.5, 0.9, 0.3) == defence_score(0.5, 0.5, 0.3)


def test_percentages_are_refused() -> None:
    with pytest.raises(SettingsError, match="task_ratio is 56"):
        defence_score(56.0, 0.5, 0.1)
