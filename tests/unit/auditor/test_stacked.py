"""Arms that train together learn what each learns alone, and what plain autograd teaches it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from auditor import workers
from auditor.attacks.latent_probe import LatentProbe
from auditor.attacks.parts import stacked
from auditor.attacks.parts.probes import GraphProbe, RowProbe, squared_gram_graph
from auditor.attacks.parts.stacked import StackedGraphs, StackedRows, train_step, write_back
from auditor.plan import ProbeName, ProbeSettings
from auditor.scorers.fitting import fits
from auditor.views.token import TokenView
from auditor.workers import one_thread_a_job, run_jobs
from splitwire.errors import SplitwireError

SETTINGS = ProbeSettings(restarts=3, epochs=4, batch_rows=32)
PROBES = SETTINGS.probes
NUM_CLASSES = 7


def view_of(rows: int = 120, width: int = 6, length: int = 10) -> TokenView:
    generator = np.random.default_rng(0)
    tokens, half = generator.integers(0, 5, rows), rows // 2
    codes = generator.normal(size=(5, width))
    values = (2 * codes[tokens] + generator.normal(size=(rows, width))).astype(np.float32)
    offsets = np.arange(0, rows + 1, length)
    return TokenView("forward_only", "all", values, offsets, np.arange(half), tokens[:half], np.arange(half, rows), 3)


def read(arm: object) -> np.ndarray:
    return np.concatenate([values for _, values in arm.log_probabilities()])


def fitted(settings: ProbeSettings) -> dict[str, np.ndarray]:
    arms = LatentProbe().run(view_of(), settings, lambda *_: None)
    with one_thread_a_job():
        run_jobs(fits(arms), lambda _: None)
    return {arm.name: read(arm) for arm in arms}


@pytest.mark.parametrize("probe", PROBES)
def test_an_arm_is_the_same_alone_and_beside_others(probe: ProbeName) -> None:
    """No arm sees another's parameters, gradients or seed."""
    settings = dataclasses.replace(SETTINGS, probes=(probe,))
    together, alone = fitted(settings), fitted(dataclasses.replace(settings, restarts=1))
    name = f"{probe}/0"
    np.testing.assert_allclose(together[name], alone[name], rtol=1e-3, atol=1e-4)
    assert np.abs(together[name] - together[f"{probe}/1"]).max() > 1e-2


def _seeded(make: Callable[[], nn.Module]) -> list[nn.Module]:
    probes = []
    for seed in range(3):
        torch.manual_seed(seed)
        probes.append(make())
    return probes


def _plain_training(probe: nn.Module, hidden: Callable[[nn.Module], torch.Tensor], classes: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(probe.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(probe.head(hidden(probe)), classes).backward()
        optimizer.step()


@pytest.mark.parametrize("logits_at_once", [1, 1 << 22])
@pytest.mark.parametrize("kind", ["rows", "graphs"])
def test_a_stack_is_trained_as_plain_autograd_trains_each_probe(
    kind: str, logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded classes, the head's gradient by hand and the batched layers change nothing but rounding."""
    monkeypatch.setattr(stacked, "_LOGITS_AT_ONCE", logits_at_once)
    generator = torch.Generator().manual_seed(9)
    features = torch.randn(3, 8, 22, generator=generator)
    classes = torch.randint(0, NUM_CLASSES, (24,), generator=generator)
    if kind == "rows":
        probes, plain = (_seeded(lambda: RowProbe(22, 12, NUM_CLASSES)) for _ in range(2))
        stack = StackedRows(probes)
        inputs = (features.flatten(0, 1),)
        single = lambda probe: nn.functional.gelu(probe.inner(probe.norm(inputs[0])))  # noqa: E731
    else:
        probes, plain = (_seeded(lambda: GraphProbe(NUM_CLASSES)) for _ in range(2))
        stack = StackedGraphs(probes)
        inputs = (features, squared_gram_graph(torch.randn(3, 8, 5, generator=generator)))
        single = lambda probe: probe.hidden(*inputs).flatten(0, 1)  # noqa: E731
    before = [parameter.detach().clone() for parameter in probes[0].parameters()]
    optimizer = torch.optim.AdamW(stack.parameters(), lr=1e-2)
    for _ in range(5):
        train_step(stack, optimizer, stack.hidden(*inputs), classes)
    write_back(stack)
    for probe, reference in zip(probes, plain, strict=True):
        _plain_training(reference, single, classes)
        for mine, wanted in zip(probe.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=2e-4)
    moved = itertools.starmap(torch.equal, zip(before, probes[0].parameters(), strict=True))
    assert not any(moved), "every parameter was trained"


def test_results_are_the_same_bytes_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for number in (1, 3):
        monkeypatch.setattr(workers, "num_workers", lambda number=number: number)
        results.append(fitted(SETTINGS))
    assert results[0].keys() == results[1].keys() == {f"{probe}/{n}" for probe in PROBES for n in range(3)}
    for name, values in results[0].items():
        assert values.tobytes() == results[1][name].tobytes()


def test_a_group_is_one_job_and_a_lone_arm_another() -> None:
    class Lone:
        def fit(self, tick: object) -> None: ...

    arms = LatentProbe().run(view_of(), SETTINGS, lambda *_: None)
    assert len(arms) == 9
    assert len(fits([*arms, Lone(), Lone()])) == 3 + 2


def test_arms_of_a_group_are_fitted_once_and_tell_how_far_they_are() -> None:
    arms = LatentProbe().run(view_of(), SETTINGS, lambda *_: None)[:3]
    ticks: list[float] = []
    arms[1].fit(ticks.append)
    assert len(ticks) == SETTINGS.epochs * 2
    assert ticks == sorted(ticks)
    assert ticks[0] == 0.0
    before = read(arms[0])
    arms[0].fit(ticks.append)
    assert len(ticks) == SETTINGS.epochs * 2
    np.testing.assert_array_equal(read(arms[0]), before)


def test_a_group_that_was_stopped_can_be_fitted_again() -> None:
    arm = LatentProbe().run(view_of(), SETTINGS, lambda *_: None)[0]

    def stop(_share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        arm.fit(stop)
    before = read(arm)
    arm.fit(lambda _: None)
    assert np.abs(read(arm) - before).max() > 1e-2


def test_the_rows_are_read_once_for_the_arms_and_their_twins() -> None:
    """Other labels share the invariants; other rows, by whatever way they came in, do not."""
    view, calls = view_of(), []

    def invariants() -> int:
        calls.append(1)
        return len(calls)

    twin = view.with_tokens(view.train_tokens[::-1])
    assert view.once("a", invariants) == twin.once("a", invariants) == 1
    for other in (view.with_rows(view.rows + 1), dataclasses.replace(view, rows=view.rows + 1)):
        assert other.once("a", invariants) == len(calls) > 1
    assert view.once("b", lambda: "b") == "b"


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(SplitwireError, match="cuda:99"):
        LatentProbe().run(view_of(), dataclasses.replace(SETTINGS, device="cuda:99"), lambda *_: None)


def test_epochs_end_where_the_budget_of_rows_does() -> None:
    """Row probes count the train rows [60], the graph probe every row [120]; one epoch is always had."""
    for budget, by_rows, by_frames in ((60 * 4, 4, 2), (60 * 3, 3, 2), (1, 1, 1), (10**6, 4, 4)):
        arms = LatentProbe().run(
            view_of(), dataclasses.replace(SETTINGS, max_rows_trained=budget, restarts=1), lambda *_: None
        )
        assert [arm.epochs for arm in arms] == [by_rows, by_rows, by_frames]


def test_a_budget_is_the_same_training_as_so_many_epochs() -> None:
    bounded = fitted(dataclasses.replace(SETTINGS, epochs=9, max_rows_trained=120))
    for name, epochs in (("coordinate_plus_invariants/0", 2), ("invariant_graph/0", 1)):
        np.testing.assert_array_equal(bounded[name], fitted(dataclasses.replace(SETTINGS, epochs=epochs))[name])
