"""What the evidence shows an attacker, and that no plan passes over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from auditor.channels import FAMILIES
from auditor.evidence.inputs import open_evidence
from auditor.evidence.observable import observable
from auditor.plan import Plan
from auditor.results import Check, Control, NotMeasured, Result
from auditor.verdict import decide
from splitwire.bundles import WireRecord
from splitwire.v1 import channels_pb2, stack_pb2

FORWARD, BACKWARD = channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD
PASSED = Result(
    attack="attack",
    family="forward_only",
    question="token",
    partition="all",
    knowledge="",
    given="",
    paper="",
    num_documents=30,
    num_frames=100,
    num_rows=1000,
    checks=(Check("metric", "pp", 1.0, 0.5, 0.1, 0.9, 0.2, 0.3, "pass"),),
    baseline={},
    twin={},
    controls=(Control("planted", 3.0, found=True),),
)
RETURN, CONTROL = channels_pb2.HOP_RETURN, channels_pb2.HOP_CONTROL


@dataclass
class Source:
    """A bundle with so many frames of each hop."""

    hops: dict[Any, int]
    settings: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def messages(self, *_: Any) -> Iterator[WireRecord]:
        for kind, count in self.hops.items():
            header = stack_pb2.Frame(header=stack_pb2.FrameHeader(hop=kind))
            first = stack_pb2.ExchangeRequest(frame=header).SerializeToString()
            more = stack_pb2.ExchangeRequest(frame=stack_pb2.Frame(chunk_index=1)).SerializeToString()
            for _ in range(count):
                yield WireRecord(kind, "request", "s", first, 1, 1, "ExchangeRequest")
                yield WireRecord(kind, "request", "s", more, 1, 1, "ExchangeRequest")

    def frames(self, *_: Any) -> Iterator[Any]:
        return iter(())


def truth(*members: bool) -> Any:
    return SimpleNamespace(records={}, documents=[{"id": str(m), "member": m} for m in members], is_complete=True)


@pytest.mark.parametrize(
    ("hops", "members", "expected"),
    [
        ({}, (), set()),
        ({CONTROL: 1}, (), {"timing_metadata"}),
        ({FORWARD: 1}, (True,), {"forward_only", "timing_metadata"}),
        ({FORWARD: 2}, (True, True), {"forward_only", "timing_metadata", "accumulated_history"}),
        ({FORWARD: 1, RETURN: 1}, (), {"forward_only", "response_side", "timing_metadata"}),
        (
            {FORWARD: 1, BACKWARD: 1},
            (True, False),
            {"forward_only", "gradient_only", "joint_forward_gradient", "timing_metadata", "membership_property"},
        ),
        ({BACKWARD: 3}, (), {"gradient_only", "timing_metadata"}),
    ],
    ids=["nothing", "control", "one-frame", "two-frames", "returned", "training-step-held-out", "backward-alone"],
)
def test_hops_counts_and_held_out_documents_show_families(
    hops: dict[Any, int], members: tuple[bool, ...], expected: set[str]
) -> None:
    assert set(observable([Source(hops)], [truth(*members)])) == expected


def test_a_visible_family_that_is_out_of_scope_keeps_a_clean_audit_from_passing() -> None:
    plan = Plan(name="scoped", scope=("forward_only",))
    assert decide(plan, [PASSED], [], [], {"forward_only": "x"}).state == "pass"
    verdict = decide(plan, [PASSED], [], [], {"forward_only": "x", "timing_metadata": "sizes are seen"})
    assert verdict.exit_code == 3
    (reason,) = verdict.reasons
    assert (reason.kind, reason.subject) == ("not_measured", "timing_metadata")
    assert "sizes are seen" in reason.text
    assert "scope" in reason.text


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_counts_when_it_is_visible_and_not_when_it_is_measured(name: str) -> None:
    plan = Plan(name="scoped", scope=("forward_only",))
    measured = [PASSED]
    seen = {name: "seen"}
    assert (decide(plan, measured, [], [], seen).state == "pass") == (name == "forward_only")


def test_what_could_not_run_is_told_once() -> None:
    plan = Plan(name="scoped", scope=("forward_only",))
    cannot = NotMeasured("attack", "timing_metadata", "no times")
    reasons = decide(plan, [PASSED], [cannot], [], {"timing_metadata": "seen"}).reasons
    assert [reason.text for reason in reasons] == ["attack could not run: no times"]


def test_a_real_bundle_shows_what_crossed(make_run: Callable[..., Any]) -> None:
    run = make_run(frames=5, gradient="none")
    evidence = open_evidence([run.bundle], key=run.key)
    seen = set(observable(evidence.bundles, evidence.truths))
    assert seen == {"forward_only", "accumulated_history", "timing_metadata", "membership_property"}
