"""One finished audit, told in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from auditor.audit import run_audit
from auditor.plan import Plan, ProbeSettings, StatisticsSettings

PLAN = Plan(
    name="small",
    families=("forward_only", "gradient_only"),
    statistics=StatisticsSettings(repetitions=100),
    probe=ProbeSettings(probes=("invariant_only",), restarts=1, epochs=1),
)


@pytest.fixture(scope="session")
def report(make_run: Callable[..., Any]) -> dict[str, Any]:
    """An audit of a gradient that shows its decoys. To be copied by whoever changes it."""
    run = make_run(frames=60, gradient="open")
    return run_audit([run.bundle], key=run.key, plan=PLAN)
