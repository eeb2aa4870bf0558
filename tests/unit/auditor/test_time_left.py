"""What an audit says of the time that it still takes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from auditor import time_left
from auditor.audit import run_audit
from auditor.plan import Plan, ProbeSettings
from auditor.progress import shown
from auditor.time_left import TimeLeft

PROBE = ProbeSettings()
DEAR, CHEAP = ("latent_probe", "forward_only"), ("row_norm", "forward_only")


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_left, "num_workers", lambda: 1)


def test_an_estimate_begins_from_known_costs_and_grows_with_the_capture() -> None:
    small, large = (TimeLeft([CHEAP], rows, PROBE).seconds(CHEAP, 0.0) for rows in (80_000, 240_000))
    assert large == pytest.approx(3 * small)
    tiny, small_dear, large_dear = (
        TimeLeft([DEAR], rows, PROBE).seconds(DEAR, 0.0) for rows in (8_000, 80_000, 240_000)
    )
    assert small_dear == pytest.approx(10 * tiny)
    assert large_dear == small_dear > 10 * small


def test_a_plan_with_fewer_probes_takes_less_time() -> None:
    one = ProbeSettings(probes=("coordinate_plus_invariants",), restarts=1, epochs=6)
    assert TimeLeft([DEAR], 80_000, one).seconds(DEAR, 0.0) == pytest.approx(
        TimeLeft([DEAR], 80_000, PROBE).seconds(DEAR, 0.0) / 30
    )


def test_a_slow_machine_is_learned_from_what_is_finished() -> None:
    left = TimeLeft([DEAR, CHEAP], 80_000, PROBE)
    expected = left.seconds(DEAR, 0.0)
    left.end(DEAR, 50 * expected, measured=True)
    cheap = TimeLeft([CHEAP], 80_000, PROBE).seconds(CHEAP, 0.0)
    assert left.seconds(CHEAP, 0.0) > 10 * cheap
    left = TimeLeft([DEAR, CHEAP], 80_000, PROBE)
    left.end(DEAR, 0.0, measured=False)
    assert left.seconds(CHEAP, 0.0) == cheap


def test_the_running_part_counts_down() -> None:
    left = TimeLeft([DEAR, CHEAP], 80_000, PROBE)
    whole = left.seconds(DEAR, 0.0)
    assert left.seconds(DEAR, 10.0) == pytest.approx(whole - 10)


def test_a_part_that_is_late_makes_the_others_longer_before_it_ends() -> None:
    left, other = TimeLeft([DEAR, CHEAP], 80_000, PROBE), TimeLeft([CHEAP], 80_000, PROBE).seconds(CHEAP, 0.0)
    late = left.seconds(DEAR, 50 * left.seconds(DEAR, 0.0))
    assert late > 10 * other


def test_every_part_says_its_number_and_the_time_left(make_run: Callable[..., Any]) -> None:
    run, output = make_run(frames=30), io.StringIO()
    plan = Plan(name="two", attacks=("gradient_support", "row_norm"), families=("forward_only", "gradient_only"))
    with shown(Console(file=output, force_terminal=False, width=200)) as progress:
        run_audit([run.bundle], key=run.key, plan=plan, progress=progress)
    lines = [line for line in output.getvalue().splitlines() if "/3 " in line]
    assert [line.split("s  ")[1] for line in lines] == [
        "1/3 gradient_support on gradient_only: less than a minute left, starting",
        "2/3 row_norm on forward_only: less than a minute left, starting",
        "3/3 row_norm on gradient_only: less than a minute left, starting",
    ]
