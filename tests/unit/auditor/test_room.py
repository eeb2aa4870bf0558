"""An audit whose rows have no room is refused before any is read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from auditor.audit import run_audit
from auditor.channels import FORWARD_ONLY, RESPONSE_SIDE
from auditor.evidence import room
from auditor.evidence.inputs import open_evidence
from auditor.plan import Plan
from splitwire.errors import RecordingError


class _Usage(NamedTuple):
    free: int


ROWS_BYTES = 120 * 16 * 8 * 4


def test_rows_are_counted_once_a_session_and_by_the_hops_that_are_read(make_run: Callable[..., Any]) -> None:
    """Both hops of the run with its truth, a little more for framing; the same session twice is one."""
    run = make_run()
    evidence = open_evidence([run.bundle], key=run.key)
    once = room.rows_bytes(evidence.bundles, evidence.summaries, with_returned=True)
    truth_bytes = 41 * 120 * 16
    assert 2 * ROWS_BYTES + truth_bytes < once < 2.7 * (ROWS_BYTES + truth_bytes)
    assert room.rows_bytes(evidence.bundles * 2, evidence.summaries * 2, with_returned=True) == once
    other = make_run(session="0123456789abcdef")
    both = open_evidence([run.bundle, other.bundle], key=run.key)
    assert room.rows_bytes(both.bundles, both.summaries, with_returned=False) > 1.9 * once


def test_a_disk_that_is_too_small_is_named_before_anything_is_read(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folder, need and what is free; enough is enough."""
    run = make_run()
    plan = replace(Plan(), attacks=("gradient_support",), families=(FORWARD_ONLY, RESPONSE_SIDE))
    labels: list[str] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: _Usage(3 << 16))
    with pytest.raises(RecordingError, match=r"need \d MiB in .*, which has 0 MiB free") as refused:
        run_audit([run.bundle], key=run.key, plan=plan, progress=lambda label, _done, _total: labels.append(label))
    assert tempfile.gettempdir() in refused.value.message
    assert "TMPDIR" in refused.value.remedy
    assert not any("reading" in label for label in labels)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: _Usage(30 * ROWS_BYTES))
    run_audit([run.bundle], key=run.key, plan=plan)
