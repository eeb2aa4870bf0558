"""Membership from snapshots: the node's weights are rebuilt rightly, leaks are found, and chance is chance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from auditor.attacks.membership import Membership, _with_weights
from auditor.attacks.parts.measures import Measures
from auditor.attacks.parts.surrogate import gram_network
from auditor.calibration import Dose
from auditor.calibration import state as instruments
from auditor.calibration.state import MembershipInstrument
from auditor.channels import MEMBERSHIP_PROPERTY
from auditor.evidence.inputs import open_evidence
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import split_capture, split_documents
from auditor.plan import Plan, SplitSettings, StatisticsSettings
from auditor.scorers.membership import (
    _canary_control,
    members_found,
    membership_twin,
    not_by_luck,
    planted_members,
    read_members,
    tpr_check,
)
from auditor.statistics.auc import Auc, plain_auc
from auditor.views.base import NotMeasurableError
from auditor.views.membership import MembershipKey, MembershipView, membership_view
from auditor.views.units import UnitKey
from splitwire.backbone import ModelSettings, load_middle
from splitwire.bundles import SnapshotWriter
from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2
from ucn.stacks.adapters import with_lora
from ucn.stacks.base import ForwardCall, StackLimits
from ucn.stacks.gram import GramStack

PLAN = Plan(statistics=StatisticsSettings(repetitions=150))
READINGS = {"one": (0,), "learned": (0, 1, 2)}


def _measured(leak: float, *, count: int = 300, canaries: int = 0, seed: int = 2) -> tuple[Measures, MembershipKey]:
    """Measures of `count` documents whose members stand out by `leak` spreads, and canaries by three."""
    generator = np.random.default_rng(seed)
    member = generator.random(count) < 0.6
    canary = np.arange(count) < canaries
    values = generator.normal(size=(count, 3))
    values[member & ~canary] += leak
    values[member & canary] += 3
    split = split_documents([f"doc-{n}" for n in range(count)], SplitSettings())
    known = np.flatnonzero((split == 0) & ~canary)
    measures = Measures(values, READINGS, known, member[known])
    return measures, MembershipKey(UnitKey(member, split, np.arange(count)), canary)


def test_a_leak_is_found_and_chance_is_not() -> None:
    """AUC and members found at 1 % false alarms; the twin reads nothing either way."""
    leaking, key = _measured(1.5)
    chosen, found = read_members(leaking, key, PLAN)
    assert found.lower_ratio is not None
    assert found.lower_ratio > 0.8
    rate = members_found(chosen, key, PLAN)
    assert rate.tpr_ratio is not None
    assert rate.tpr_ratio > 0.2
    clean, key = _measured(0.0)
    found = read_members(clean, key, PLAN)[1]
    assert found.lower_ratio is not None
    assert found.lower_ratio < 0.5
    for measures in (leaking, clean):
        lower = membership_twin(measures, key, PLAN).lower_ratio
        assert lower is not None
        assert lower < 0.5


def test_a_leak_in_several_measures_is_read_by_all_of_them() -> None:
    """The fitted reading is chosen nearly always; 24 documents of select alone chose another in 6 of 20."""
    chosen = [read_members(*_measured(0.5, count=240, seed=seed), PLAN)[0].name for seed in range(20)]
    assert chosen.count("learned") >= 18


def test_a_known_candidate_is_scored_without_its_own_answer() -> None:
    """Thirty measures of noise can tell the known candidates by heart; their scores do not."""
    generator = np.random.default_rng(4)
    member = generator.random(100) < 0.5
    noise = Measures(generator.normal(size=(100, 30)), {"learned": tuple(range(30))}, np.arange(100), member)
    auc = plain_auc(noise.scores()[0].scores, member)
    assert auc is not None
    assert auc < 0.65


def test_few_documents_cannot_give_a_rate_at_one_percent() -> None:
    """The check of a clean run is held back by power, and names it."""
    measures, key = _measured(0.0)
    chosen, _ = read_members(measures, key, PLAN)
    check = tpr_check(members_found(chosen, key, PLAN), [], PLAN)
    assert check.state == "inconclusive"
    assert {reason.kind for reason in check.reasons} >= {"power", "instrument"}


def test_a_few_documents_in_order_are_luck() -> None:
    """A bootstrap of few documents may believe their order; an exact test does not."""
    scores, positive = np.array([3.0, 2.5, 2.0, 0.9, 1.0, 0.5]), np.array([True, True, True, True, False, False])
    believed = Auc(0.875, 0.1, 0.7, 1.0, 1.0, 6, 4, 2)
    assert not_by_luck(believed, scores, positive, 0.05).lower_ratio == 0.5
    many = np.concatenate([np.arange(20) + 30.0, np.arange(20)])
    assert not_by_luck(believed, many, many >= 30, 0.05) == believed


def test_canaries_are_the_control_and_take_no_part_in_the_number() -> None:
    """Repeated ones are told from held-out ones; without any the control says what to set."""
    measures, key = _measured(0.0, canaries=60)
    chosen, found = read_members(measures, key, PLAN)
    assert found.num_positive + found.num_negative == int(((key.units.split == 2) & ~key.canary).sum())
    control = _canary_control(chosen, key, PLAN)
    assert control.found
    measures, key = _measured(0.0)
    missing = _canary_control(read_members(measures, key, PLAN)[0], key, PLAN)
    assert not missing.found
    assert "corpus.canary_prefix" in missing.what


def test_its_instrument_reads_what_the_scorer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a dose and at a dose of zero, number for number; a larger dose reads more, and the full one breaks."""
    measures, key = _measured(0.0)
    monkeypatch.setattr(instruments, "membership_view", lambda *_: (SimpleNamespace(model="public"), key))
    attack = Membership()
    monkeypatch.setattr(attack, "measure", lambda _view: measures)
    instrument = MembershipInstrument(attack, SimpleNamespace(), MEMBERSHIP_PROPERTY, PLAN)  # type: ignore[arg-type]
    plain = instrument.read(None, 1)
    chosen, found = read_members(measures, key, PLAN)
    rate = members_found(chosen, key, PLAN)
    assert [(reading.value, reading.lower) for reading in plain] == [
        (found.auc_ratio, found.lower_ratio),
        (rate.tpr_ratio, rate.lower_ratio),
    ]
    assert [reading.breaks for reading in plain] == [False, False]
    for nothing in (Dose(0.0, 1.0, "coordinate"), Dose(1.0, 0.0, "coordinate")):
        assert instrument.read(nothing, 1) == plain
    areas = [instrument.read(Dose(coverage, 1.0, "coordinate"), 1)[0] for coverage in (0.0, 0.3, 1.0)]
    values = [area.value for area in areas if area.value is not None]
    assert values == sorted(set(values))
    assert areas[-1].breaks


def test_adapters_of_a_snapshot_are_merged_as_the_node_computes(tiny_model: Callable[[str], Path]) -> None:
    """For layers of both orientations."""
    for family, target in (("llama", "q_proj"), ("gpt2", "c_proj")):
        base = load_middle(ModelSettings(source=str(tiny_model(family)), first_layer=2, last_layer=4))
        settings = stack_pb2.LoraSettings(rank=2, alpha=6, target_modules=[target])
        own, adapters = with_lora(base, settings, common_start=True)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in adapters.values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        state = {f"parameter.{name}": parameter.detach().numpy() for name, parameter in adapters.items()}
        merged = _with_weights(base, state, {"lora_rank": 2, "lora_alpha": 6.0})
        rows = torch.randn(2, 5, base.hidden_width, generator=generator)
        with torch.no_grad():
            expected = own(rows)
            assert torch.allclose(merged(rows), expected, atol=1e-4)
            assert not torch.allclose(base(rows), expected, atol=1e-2)


def test_the_surrogate_of_a_snapshot_answers_as_the_node() -> None:
    """Weights of a gram session, by name, in the auditor's copy of the network."""
    gram = stack_pb2.GramSettings(width=6, num_experts=2, num_layers=2, radial=True)
    request = stack_pb2.OpenSessionRequest(
        gram=gram, optimizer=stack_pb2.OptimizerSettings(beta1=0.9, beta2=0.99, epsilon=1e-8)
    )
    stack = GramStack(request, torch.device("cpu"), StackLimits())
    state = stack.state()
    arrays = {name: tensor.numpy() for name, tensor in state.tensors.items()}
    network = gram_network(state.facts, arrays)
    rows = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(network(rows).detach(), stack.forward(rows, ForwardCall(1, "evaluate")))


def _gram_candidates(count: int) -> tuple[MembershipView, MembershipKey]:
    """Random frames and a surrogate before and after a training that knew nothing of who was a member."""
    generator = torch.Generator().manual_seed(7)
    facts = {"width": 8, "num_experts": 2, "num_layers": 2, "radial": True, "sign_invariant": False}
    network = GramNetwork(stack_pb2.GramSettings(**facts), generator)
    start = {f"parameter.{name}": value.numpy().copy() for name, value in network.state_dict().items()}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    end = {f"parameter.{name}": value.numpy() for name, value in network.state_dict().items()}
    frames = list(torch.randn(count, 6, 8, generator=generator).numpy())
    member = np.random.default_rng(3).random(count) < 0.6
    split = split_documents([f"doc-{n}" for n in range(count)], SplitSettings())
    known = np.flatnonzero(split == 0)
    key = MembershipKey(UnitKey(member, split, np.arange(count)), np.zeros(count, bool))
    owner = np.arange(count)
    view = MembershipView(MEMBERSHIP_PROPERTY, count, owner, frames, [], None, facts, start, end, known, member[known])
    return view, key


def test_a_step_on_the_member_is_found_in_the_weights_of_a_surrogate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest one is; none at all changes no number; with the answers dealt out anew it tells nothing."""
    view, key = _gram_candidates(240)
    attack, members = Membership(), np.flatnonzero(key.units.real)
    measures = attack.measure(view)
    assert np.array_equal(planted_members(attack, view, measures, members, 0.0, 1).values, measures.values)
    planted = planted_members(attack, view, measures, members, 1.0, 1)
    found, twin = read_members(planted, key, PLAN)[1], membership_twin(planted, key, PLAN)
    assert found.lower_ratio is not None
    assert found.lower_ratio > 0.6
    assert twin.lower_ratio is not None
    assert twin.lower_ratio < 0.5
    monkeypatch.setattr(instruments, "membership_view", lambda *_: (view, key))
    instrument = MembershipInstrument(attack, SimpleNamespace(), MEMBERSHIP_PROPERTY, PLAN)  # type: ignore[arg-type]
    assert "step on the member" in instrument.leak
    plain = instrument.read(None, 1)
    assert instrument.read(Dose(1.0, 0.0, "coordinate"), 1) == plain
    assert not plain[0].detected
    assert instrument.read(Dose(1.0, 1.0, "coordinate"), 1)[0].breaks


def test_what_is_missing_is_named(make_run: Callable[..., Any], tmp_path: Path) -> None:
    """No snapshots; then no frames in which members and held-out documents crossed alike."""
    run = make_run(frames=40, gradient="none")
    writer = SnapshotWriter(
        tmp_path / "s",
        session_hash="5e55107a5e55107a",
        every_steps=1,
        stack={"stack": "gram"},
        optimizer={},
        settings={},
    )
    for step in range(3):
        writer.write({"parameter.gain": np.ones(3, np.float32)}, optimizer_step=step, last_step=step)
    writer.close()
    for folders, expected in (([run.bundle], "--snapshot-every"), ([run.bundle, tmp_path / "s"], "membership_blocks")):
        evidence = open_evidence(folders, key=run.key)
        work = tmp_path / str(len(folders))
        work.mkdir()
        capture = read_capture(evidence.bundles, evidence.truths, compute_modes=("train",), folder=work)
        splits = split_capture(capture, PLAN.split)
        with pytest.raises(NotMeasurableError, match=expected):
            membership_view(Material(capture, splits, evidence.bundles, evidence.truths), MEMBERSHIP_PROPERTY, PLAN)
        capture.close()
