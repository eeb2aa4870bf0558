"""A view of norms that would take more than the plan's memory holds whole frames, evenly chosen, and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from auditor.audit import run_audit
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import Plan, ProbeSettings, StatisticsSettings
from auditor.progress import silent
from auditor.views.units import unit_view, units

PLAN = Plan(attacks=("row_norm",), families=("gradient_only",), statistics=StatisticsSettings(repetitions=200))
FRAMES, ROWS = 300, 16


def test_a_view_of_norms_keeps_whole_frames_within_its_bytes(make_run: Callable[..., Any]) -> None:
    """Enough bytes change nothing; half of them leave half of the frames, each whole."""
    run = make_run(frames=FRAMES)
    with opened_material(open_evidence([run.bundle], key=run.key), PLAN, silent) as opened:
        table = units(opened.material.capture, opened.material.splits)
        every, _ = unit_view(table, "gradient_only", 1)
        enough, _ = unit_view(table, "gradient_only", 1, 256 * FRAMES * ROWS)
        half, key = unit_view(table, "gradient_only", 1, 128 * FRAMES * ROWS)
    assert np.array_equal(every.norm, enough.norm)
    groups, counts = np.unique(half.group, return_counts=True)
    assert len(groups) == FRAMES // 2
    assert set(counts) == {ROWS}
    assert len(key.real) == len(half.norm)
    assert np.array_equal(half.norm, every.norm[np.isin(every.group, groups)])


def test_the_result_says_how_many_units_were_read(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=FRAMES)
    small = replace(PLAN, probe=ProbeSettings(max_view_bytes=128 * FRAMES * ROWS))
    texts = [run_audit([run.bundle], key=run.key, plan=plan)["results"][0]["given"] for plan in (PLAN, small)]
    assert f"norms of {FRAMES * ROWS} units" in texts[0]
    assert f"norms of {FRAMES * ROWS // 2} of {FRAMES * ROWS} units" in texts[1]
