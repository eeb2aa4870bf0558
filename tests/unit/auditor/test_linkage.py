"""The linkage attack finds rows that were sent twice, and nothing where every row is fresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from auditor.attacks.linkage import Linkage
from auditor.audit import run_audit
from auditor.channels import ACCUMULATED_HISTORY
from auditor.plan import QUICK
from auditor.statistics.auc import plain_auc
from auditor.views.linkage import LinkageView

REAL, DECOYS, WIDTH, FRAMES = 12, 12, 16, 80
SIGMA = 0.35


def _rotation(generator: np.random.Generator) -> NDArray[np.float64]:
    return np.asarray(np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0])


def _view(kind: str) -> tuple[LinkageView, NDArray[np.bool_]]:
    """Rotated and permuted frames. `published` re-sends released rows, `fresh` noises pool rows anew."""
    generator = np.random.default_rng(7)
    pool: list[NDArray[np.float64]] = []
    rows, real = [], []
    for _ in range(FRAMES):
        clean = generator.normal(size=(REAL, WIDTH))
        clean /= np.linalg.norm(clean, axis=1, keepdims=True)
        released = clean + SIGMA * generator.normal(size=clean.shape)
        if len(pool) < 5:
            pool.append(released if kind == "published" else clean)
            continue
        old = np.concatenate(pool)[generator.permutation(len(pool) * REAL)[:DECOYS]]
        decoys = old if kind == "published" else old + SIGMA * generator.normal(size=old.shape)
        order = generator.permutation(REAL + DECOYS)
        rows.append((np.concatenate([released, decoys]) @ _rotation(generator))[order].astype(np.float32))
        real.append((np.arange(REAL + DECOYS) < REAL)[order])
        pool = [*pool[-4:], released if kind == "published" else clean]
    flat = np.concatenate(rows)
    norm = np.sqrt((flat.astype(np.float64) ** 2).sum(1))
    group = np.repeat(np.arange(len(rows)), REAL + DECOYS)
    return LinkageView(ACCUMULATED_HISTORY, flat, norm, group), np.concatenate(real)


@pytest.mark.parametrize("reading", [0, 1])
def test_rows_sent_twice_are_found_behind_fresh_rotations(reading: int) -> None:
    """Both readings tell nearly every re-sent row; the gram one needs two of them from one frame."""
    view, real = _view("published")
    scores = Linkage().run(view, None, lambda *_: None)[reading].scores
    later = view.group > 10
    auc = plain_auc(scores[later], real[later])
    assert auc is not None
    assert auc > 0.97


@pytest.mark.parametrize("reading", [0, 1])
def test_fresh_noise_on_every_row_leaves_chance(reading: int) -> None:
    """The same pool, clipped rows before noise: 900 decoys read as real rows do (AUC .5, six standard errors)."""
    view, real = _view("fresh")
    scores = Linkage().run(view, None, lambda *_: None)[reading].scores
    auc = plain_auc(scores, real)
    assert auc is not None
    assert abs(auc - 0.5) < 0.083


@pytest.mark.parametrize("reading", [0, 1])
def test_fewer_real_rows_in_later_frames_are_no_leak(reading: int) -> None:
    """The nearest earlier row comes nearer as more has crossed; that must not read as decoys (four standard errors)."""
    view, real = _view("fresh")
    kept = (view.group < 25) | ~real | (np.arange(len(real)) % 6 == 0)
    thinned = LinkageView(view.family, view.rows[kept], view.norm[kept], view.group[kept])
    scores = Linkage().run(thinned, None, lambda *_: None)[reading].scores
    auc = plain_auc(scores, real[kept])
    assert auc is not None
    assert abs(auc - 0.5) < 0.075


def test_a_row_is_compared_with_earlier_frames_alone() -> None:
    """Later frames change no score: the attacker links as frames come."""
    view, _ = _view("published")
    first = view.group < 20
    part = LinkageView(view.family, view.rows[first], view.norm[first], view.group[first])
    for whole, cut in zip(
        Linkage().run(view, None, lambda *_: None), Linkage().run(part, None, lambda *_: None), strict=True
    ):
        np.testing.assert_array_equal(whole.scores[first], cut.scores)


def test_an_audit_reports_linkage_with_its_control_and_twin(make_run: Callable[..., Any]) -> None:
    """Rows drawn afresh: no leak is claimed, and the planted one is found."""
    run = make_run(frames=240, gradient="none")
    report = run_audit([run.bundle], key=run.key, plan=QUICK)
    result = next(entry for entry in report["results"] if entry["attack"] == "linkage")
    check = result["checks"][0]
    assert check["metric"] == "linkage_auc"
    assert check["lower"] < 0.5 < check["upper"]
    assert check["state"] == "inconclusive"
    assert result["controls"][0]["found"]
    assert result["twin"]["lower_ratio"] < 0.5


def test_without_decoys_there_is_nothing_to_link(make_run: Callable[..., Any]) -> None:
    """A frame of real rows alone is told as not applicable, never as a pass."""
    run = make_run(frames=60, real=16)
    report = run_audit([run.bundle], key=run.key, plan=QUICK)
    missing = next(entry for entry in report["not_measured"] if entry["attack"] == "linkage")
    assert not missing["applies"]
