"""Attacks, probes, planted leaks and splits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from auditor.attacks import ATTACKS
from auditor.attacks.latent_probe import LatentProbe
from auditor.attacks.parts.invariants import frame_invariants, row_invariants
from auditor.attacks.parts.probe_data import token_classes
from auditor.attacks.parts.probes import GraphProbe, squared_gram_graph, strongest_message
from auditor.attacks.row_norm import RowNorm, fit_logistic
from auditor.channels import FAMILIES
from auditor.evidence.splits import SELECT, TEST, TRAIN, split_documents
from auditor.plan import ProbeSettings, SplitSettings
from auditor.scorers import SCORERS
from auditor.scorers.planting import plant
from auditor.scorers.support import exact_groups
from auditor.views.token import TokenView
from auditor.views.units import UnitView
from auditor.workers import run_jobs

SETTINGS = ProbeSettings(restarts=1, epochs=15, batch_rows=64)


def token_view(*, rows: int = 600, leak: float = 3.0, width: int = 8, length: int = 12) -> TokenView:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 5, rows)
    codes = generator.normal(size=(5, width))
    values = (leak * codes[tokens] + generator.normal(size=(rows, width))).astype(np.float32)
    offsets = np.arange(0, rows + 1, length)
    half = rows // 2
    return TokenView(
        "forward_only", "all", values, offsets, np.arange(half), tokens[:half] * 7, np.arange(half, rows), 3
    )


def fit(view: TokenView, settings: ProbeSettings) -> list:
    arms = LatentProbe().run(view, settings, lambda *_: None)
    for arm in arms:
        arm.fit(lambda _: None)
    return arms


def test_every_attack_has_a_scorer_and_says_what_it_knows() -> None:
    for name, attack in ATTACKS.items():
        assert attack.name == name
        assert attack.question in SCORERS
        assert set(attack.families) <= set(FAMILIES)
        assert attack.knowledge
        assert attack.paper


def test_all_three_probes_learn_a_plain_leak() -> None:
    """The invariants see tokens because a code's cosines to the others are its own; the coordinates see it at once."""
    view = token_view()
    truth = np.random.default_rng(0).integers(0, 5, 600)[300:] * 7
    accuracy = {}
    for arm in fit(view, SETTINGS):
        for positions, log_probabilities in arm.log_probabilities():
            np.testing.assert_allclose(np.exp(log_probabilities).sum(1), 1, rtol=1e-4)
            hits = arm.classes[log_probabilities.argmax(1)] == truth[positions]
            accuracy.setdefault(arm.name, []).extend(hits.tolist())
    assert {len(hits) for hits in accuracy.values()} == {300}
    assert np.mean(accuracy["coordinate_plus_invariants/0"]) > 0.9
    assert np.mean(accuracy["invariant_only/0"]) > 0.3
    assert np.mean(accuracy["invariant_graph/0"]) > 0.3


def test_an_arm_is_a_function_of_its_seed_alone() -> None:
    """Neither the process's random state nor the order of fitting matters."""
    view = token_view(rows=240)
    first = fit(view, SETTINGS)
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    second = LatentProbe().run(view, SETTINGS, lambda *_: None)
    run_jobs([arm.fit for arm in reversed(second)], lambda _: None)
    assert torch.equal(torch.get_rng_state(), before)
    for one, two in zip(first, second, strict=True):
        for (_, left), (_, right) in zip(one.log_probabilities(), two.log_probabilities(), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_arms_learn_only_from_train_rows() -> None:
    """Changing the rows of the score documents changes no parameter of an arm that reads coordinates alone."""
    view = token_view(rows=240)
    settings = dataclasses.replace(SETTINGS, probes=("coordinate_plus_invariants",))
    arm = fit(view, settings)[0]
    assert set(arm.classes) == set(view.train_tokens)
    assert not set(view.train_rows) & set(view.score_rows)


def test_a_failing_arm_stops_the_work() -> None:
    def fail(_tick: object) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        run_jobs([fail, fail], lambda _: None)


def test_the_most_frequent_tokens_get_a_class() -> None:
    assert token_classes(np.array([9, 9, 9, 4, 4, 7, 5]), 2).tolist() == [4, 9]
    assert token_classes(np.array([9, 4, 9]), 0).tolist() == [4, 9]


def test_invariants_of_unequal_frames_match_each_frame_alone() -> None:
    rows = torch.randn(23, 6, generator=torch.Generator().manual_seed(1))
    together = row_invariants(rows, [0, 5, 14, 15, 23])
    for start, end in ((0, 5), (5, 14), (14, 15), (15, 23)):
        torch.testing.assert_close(together[start:end], frame_invariants(rows[None, start:end])[0])


def test_the_graph_has_no_self_edge_and_its_rows_sum_to_one() -> None:
    graph = squared_gram_graph(torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(2)))
    torch.testing.assert_close(graph.sum(-1), torch.ones(2, 7))
    assert not graph.diagonal(dim1=1, dim2=2).any()


def test_padding_rows_do_not_change_what_a_graph_probe_reads() -> None:
    generator = torch.Generator().manual_seed(3)
    rows, features = torch.randn(1, 5, 4, generator=generator), torch.randn(1, 5, 22, generator=generator)
    model = GraphProbe(3).eval()
    padded_rows = torch.cat([rows, torch.zeros(1, 2, 4)], dim=1)
    padded_features = torch.cat([features, torch.randn(1, 2, 22, generator=generator)], dim=1)
    plain = model.hidden(features, squared_gram_graph(rows))
    padded = model.hidden(padded_features, squared_gram_graph(padded_rows))[:, :5]
    # the strongest neighbour is at least 0 once padding is there: rows that had only negative ones may differ
    assert torch.isclose(plain, padded, atol=1e-5).float().mean() > 0.9


def test_the_logistic_fit_agrees_with_scikit_learn() -> None:
    generator = np.random.default_rng(4)
    features = generator.normal(size=(2000, 3))
    positive = generator.random(2000) < 1 / (1 + np.exp(-(features @ [1.0, -0.5, 0.2] + 0.3)))
    mine = fit_logistic(features, positive)
    reference = LogisticRegression(C=1 / (1e-3 * 2000), tol=1e-10).fit(features, positive)
    np.testing.assert_allclose(mine[:3], reference.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(mine[3], reference.intercept_[0], rtol=1e-3)


def test_the_norm_reading_uses_training_answers_for_its_direction() -> None:
    generator = np.random.default_rng(5)
    real = np.tile([True, False], 200)
    norm = np.exp(generator.normal(size=400) - 1.5 * real)
    train = np.arange(200)
    view = UnitView("gradient_only", norm, np.repeat(np.arange(40), 10), train, real[train], 1)
    for reading in RowNorm().run(view, None, lambda *_: None):
        assert reading.scores[200:][real[200:]].mean() > reading.scores[200:][~real[200:]].mean()


def test_the_published_support_vectors() -> None:
    """Open: zeros are exactly the decoys. Mitigated: nothing is zero, so all rows look real and 32 of 80 agree."""
    group = np.repeat(np.arange(50), 80)
    real = np.tile(np.arange(80) < 32, 50)
    assert exact_groups(real.copy(), real, group) == (50, 50)
    everything = np.ones_like(real)
    assert exact_groups(everything, real, group) == (0, 50)
    assert (everything == real).mean() == pytest.approx(0.4)


def test_a_zero_dose_changes_nothing_and_doses_are_nested() -> None:
    generator = np.random.default_rng(6)
    rows = generator.normal(size=(300, 5)).astype(np.float32)
    tokens = generator.integers(-1, 9, 300)

    def dose(coverage: float, amplitude: float) -> np.ndarray:
        return plant(rows, tokens, coverage_ratio=coverage, amplitude_ratio=amplitude, seed=7)

    assert np.array_equal(dose(0.5, 0.0), rows)
    assert np.array_equal(dose(0.0, 1.0), rows)
    small, large = dose(0.1, 1.0), dose(0.4, 1.0)
    changed_small, changed_large = (np.any(d != rows, axis=1) for d in (small, large))
    assert changed_small.sum() == round(0.1 * (tokens >= 0).sum())
    assert (changed_large | ~changed_small).all()
    assert np.array_equal(small[changed_small], large[changed_small])
    assert not changed_large[tokens < 0].any()
    np.testing.assert_allclose(np.linalg.norm(large, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)


def test_the_split_of_a_document_does_not_depend_on_the_order() -> None:
    ids = [f"d{i}" for i in range(50)]
    splits = dict(zip(ids, split_documents(ids, SplitSettings()), strict=True))
    again = dict(zip(ids[::-1], split_documents(ids[::-1], SplitSettings()), strict=True))
    assert splits == again
    counts = [sum(1 for value in splits.values() if value == part) for part in (TRAIN, SELECT, TEST)]
    assert counts == [25, 5, 20]


@pytest.mark.parametrize(("documents", "counts"), [(0, (0, 0, 0)), (1, (0, 1, 0)), (2, (0, 1, 1)), (3, (1, 1, 1))])
def test_few_documents_are_split_as_far_as_they_go(documents: int, counts: tuple[int, int, int]) -> None:
    splits = split_documents([f"d{i}" for i in range(documents)], SplitSettings())
    assert tuple(int((splits == part).sum()) for part in (TRAIN, SELECT, TEST)) == counts


@pytest.mark.parametrize("width", [1, 9, 70])
def test_the_strongest_message_and_its_gradient_are_those_of_a_plain_maximum(width: int) -> None:
    """Wide and narrow: more features than rows, and fewer."""
    generator = torch.Generator().manual_seed(8)
    graph = squared_gram_graph(torch.randn(3, 11, 5, generator=generator))
    hidden = torch.randn(3, 11, width, generator=generator, requires_grad=True)
    plain = (graph.unsqueeze(-1) * hidden.unsqueeze(1)).amax(2)
    quick = strongest_message(graph, hidden)
    torch.testing.assert_close(quick, plain)
    weights = torch.randn(plain.shape, generator=generator)
    expected, found = (torch.autograd.grad((x * weights).sum(), hidden)[0] for x in (plain, quick))
    torch.testing.assert_close(found, expected)
