"""One number, one unit."""

from __future__ import annotations

import math

import pytest

from auditor.statistics import units
from splitwire.errors import SettingsError


def test_ratios_and_percentage_points_convert_both_ways() -> None:
    assert units.ratio_to_pp(-0.013) == pytest.approx(-1.3)
    assert units.pp_to_ratio(units.ratio_to_pp(0.37)) == pytest.approx(0.37)


@pytest.mark.parametrize("value", [1.3, -57.0, math.nan, math.inf])
def test_a_percentage_given_for_a_ratio_is_refused_with_its_field(value: float) -> None:
    with pytest.raises(SettingsError, match="gate_ratio"):
        units.ratio_to_pp(value, "gate_ratio")
    with pytest.raises(SettingsError, match="gate_ratio"):
        units.check_ratio(value, "gate_ratio")


@pytest.mark.parametrize("value", [101.0, -400.0, math.nan])
def test_more_than_a_hundred_percentage_points_are_refused(value: float) -> None:
    with pytest.raises(SettingsError, match="effect_pp"):
        units.pp_to_ratio(value, "effect_pp")


@pytest.mark.parametrize("value", [0.5, -1, 3.2, math.nan, math.inf, 10**20])
def test_a_count_is_whole(value: float) -> None:
    with pytest.raises(SettingsError, match="rows_count"):
        units.check_count(value, "rows_count", fewest=1)


def test_edges_belong_to_a_ratio_unless_open() -> None:
    assert units.check_ratio(1.0, "x_ratio") == 1.0
    assert units.check_count(3.0, "x_count") == 3
    with pytest.raises(SettingsError, match=r"\(0, 1\)"):
        units.check_ratio(1.0, "x_ratio", open_interval=True)
