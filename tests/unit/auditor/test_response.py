"""Model completion reads what an undefended stack returns, and nothing where the returned rows say nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import json_format

from auditor.audit import run_audit
from auditor.channels import RESPONSE_SIDE
from auditor.plan import Plan, ProbeSettings, StatisticsSettings
from splitwire.backbone import (
    HeadModel,
    MiddleModel,
    ModelSettings,
    TailModel,
    identity,
    load_head,
    load_middle,
    load_tail,
)
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

pytestmark = pytest.mark.usefixtures("one_thread")

SESSION = "5e55107a5e55107a"
DOCUMENTS, LENGTH, BATCH = 120, 20, 6
PLAN = Plan(
    attacks=("model_completion",),
    families=(RESPONSE_SIDE,),
    scope=(RESPONSE_SIDE,),
    statistics=StatisticsSettings(repetitions=1000),
    probe=ProbeSettings(control_coverage_ratio=0.5),
)


@dataclass(frozen=True)
class Public:
    """The parts of the tiny public model, and texts that it wrote itself, so that it knows their next tokens."""

    settings: ModelSettings
    head: HeadModel
    middle: MiddleModel
    tail: TailModel
    texts: torch.Tensor

    @torch.no_grad()
    def returned(self) -> torch.Tensor:
        """What the delegated layers return for the texts [N, T, H]."""
        rows: torch.Tensor = self.middle(self.head(self.texts[:, :-1]))
        return rows


@pytest.fixture(scope="module")
def public(tiny_model: Callable[[str], Path]) -> Public:
    settings = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)
    head, middle, tail = load_head(settings), load_middle(settings), load_tail(settings)
    generator = torch.Generator().manual_seed(3)
    texts = torch.randint(0, 256, (DOCUMENTS, 1), generator=generator)
    with torch.no_grad():
        for _ in range(LENGTH):
            logits = tail.logits(tail(middle(head(texts)))[:, -1])[:, :256]
            values, names = logits.topk(3)
            picked = torch.multinomial((2.0 * values).softmax(-1), 1, generator=generator)
            texts = torch.cat([texts, names.gather(1, picked)], dim=1)
    return Public(settings, head, middle, tail, texts)


@pytest.fixture(scope="module")
def audit_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "audit-keys"
    write_audit_keys(folder)
    return folder


@pytest.fixture
def audit(public: Public, audit_keys: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """audit(returned rows [N, T, W], kind) -> the report of a bundle in which these rows came back."""

    def run(returned_NTW: torch.Tensor, kind: str = "transformer", *, model: bool = True, plan: Plan = PLAN) -> Any:
        folder = tmp_path / "bundle"
        settings = {"settings": {"model": {"source": public.settings.source if model else "nowhere"}}}
        signing = load_signing_key(audit_keys / "tln-recorder.key")
        writer = BundleWriter(folder, recorder="tln", settings=settings, signing_key=signing)
        facts = {"delegated": json_format.MessageToDict(identity(public.settings), preserving_proto_field_name=True)}
        with TruthWriter(folder / "truth.sealed", audit_keys / "audit.pub", facts) as truth:
            truth.add_documents([{"id": f"doc-{number}", "member": True} for number in range(DOCUMENTS)])
            _open(writer, kind, public)
            for step, start in enumerate(range(0, DOCUMENTS, BATCH), start=1):
                _step(writer, truth, step, public, returned_NTW, slice(start, start + BATCH))
        writer.close(num_dropped=0)
        return run_audit([folder], key=audit_keys / "audit.key", plan=plan)

    return run


def _open(writer: BundleWriter, kind: str, public: Public) -> None:
    value = stack_pb2.STACK_KIND_GRAM if kind == "gram" else stack_pb2.STACK_KIND_TRANSFORMER
    model = None if kind == "gram" else identity(public.settings)  # as trusted nodes do
    request = stack_pb2.OpenSessionRequest(protocol_version=1, stack_kind=value, model=model)
    message = request.SerializeToString()
    writer.write(WireRecord(channels_pb2.HOP_CONTROL, "request", SESSION, message, 0, 0, "OpenSessionRequest"))


def _step(
    writer: BundleWriter, truth: TruthWriter, step: int, public: Public, returned: torch.Tensor, part: slice
) -> None:
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
    header.compute_mode = stack_pb2.COMPUTE_MODE_TRAIN
    noise = torch.randn(returned[part].shape, generator=torch.Generator().manual_seed(step))
    messages = list(encode_frame(header, noise))
    _write(writer, channels_pb2.HOP_FORWARD, "request", messages, step)
    answer = stack_pb2.FrameHeader(hop=channels_pb2.HOP_RETURN, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
    _write(writer, channels_pb2.HOP_RETURN, "response", list(encode_frame(answer, returned[part])), step)
    texts = public.texts[part].numpy().astype(np.int32)
    shape = texts[:, :-1].shape
    order = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()
    document = np.broadcast_to(np.arange(part.start, part.stop, dtype=np.int32)[:, None], shape).copy()
    real = np.ones(shape, bool)
    token, label = np.ascontiguousarray(texts[:, :-1]), np.ascontiguousarray(texts[:, 1:])
    digest = frame_digest(messages)
    truth.add(TruthRecord(SESSION, step, digest, "train", real, order, token, label, document))


def _write(writer: BundleWriter, hop: Any, direction: Any, messages: list[bytes], step: int) -> None:
    kind = "ExchangeRequest" if direction == "request" else "ExchangeResponse"
    for message in messages:
        writer.write(WireRecord(hop, direction, SESSION, message, step, step, kind))


def _turned(rows_NTH: torch.Tensor, width: int) -> torch.Tensor:
    """The rows behind one fixed linear map, as a stack of another width would return them."""
    turn = torch.randn(rows_NTH.shape[-1], width, generator=torch.Generator().manual_seed(8))
    return rows_NTH @ turn


def _fresh_turns(rows_NTD: torch.Tensor) -> torch.Tensor:
    """Every frame behind a rotation and a permutation of its own."""
    generator = torch.Generator().manual_seed(9)
    frames = []
    for frame in rows_NTD:
        turn = torch.linalg.qr(torch.randn(frame.shape[1], frame.shape[1], generator=generator))[0]
        frames.append((frame @ turn)[torch.randperm(len(frame), generator=generator)])
    return torch.stack(frames)


def _result(report: dict[str, Any]) -> dict[str, Any]:
    return dict(next(entry for entry in report["results"] if entry["attack"] == "model_completion"))


def _check(result: dict[str, Any], metric: str) -> dict[str, Any]:
    return dict(next(check for check in result["checks"] if check["metric"] == metric))


def _accuracy(result: dict[str, Any], arm: str) -> float:
    found = next(entry for entry in result["details"]["arms"] if entry["name"] == arm)
    return float(found["accuracy_ratio"])


def test_the_public_tail_reads_an_undefended_stack_as_well_as_the_model_itself(
    public: Public, audit: Callable[..., Any]
) -> None:
    """The transformer stack without defence fails, and its reading is the model's own accuracy to the row."""
    report = audit(public.returned())
    result = _result(report)
    assert report["verdict"]["state"] == "fail"
    assert _check(result, "token_top1_effect")["state"] == "fail"
    assert _check(result, "token_top1_effect")["lower"] > 10
    assert _accuracy(result, "public_tail") == pytest.approx(result["details"]["public_model_accuracy_ratio"])
    assert all(control["found"] for control in result["controls"])
    assert result["twin"]["lower_pp"] < 1


def test_a_private_width_does_not_hide_the_public_model(public: Public, audit: Callable[..., Any]) -> None:
    """A fixed linear map to 24 values a row: the ridge to known plaintext reads through it, without any order."""
    result = _result(audit(_turned(public.returned(), 24), "gram"))
    assert _check(result, "token_top1_effect")["lower"] > 5
    assert not result["details"]["in_order"]
    assert {arm["name"].split("/")[0] for arm in result["details"]["arms"]} == {"ridge_tail", "linear"}


def test_rows_that_say_nothing_read_nothing_though_both_planted_leaks_are_found(
    public: Public, audit: Callable[..., Any]
) -> None:
    """Noise of the same size comes back: no leak is claimed, and the instrument was shown to be able to."""
    rows = public.returned()
    noise = rows.std() * torch.randn(rows.shape, generator=torch.Generator().manual_seed(5))
    result = _result(audit(noise))
    effect = _check(result, "token_top1_effect")
    assert effect["state"] != "fail"
    assert effect["lower"] < 1
    assert [control["found"] for control in result["controls"]] == [True, True]


def test_fresh_rotations_and_noise_leave_completion_at_chance(public: Public, audit: Callable[..., Any]) -> None:
    """Frames under gauges of their own and noise twice as long as the rows."""
    rows = _turned(public.returned(), 24)
    noise = 2 * rows.std() * torch.randn(rows.shape, generator=torch.Generator().manual_seed(6))
    result = _result(audit(_fresh_turns(rows) + noise, "gram"))
    assert _check(result, "token_top1_effect")["lower"] < 1
    assert _check(result, "token_top1_effect")["state"] != "fail"


def test_without_the_public_model_nothing_can_pass_and_a_probe_may_still_fail(
    public: Public, audit: Callable[..., Any]
) -> None:
    """The reason names what to do; the linear probe shows the leak all the same."""
    report = audit(public.returned(), model=False)
    result = _result(report)
    missing = next(control for control in result["controls"] if not control["found"])
    assert "model completion could not run" in missing["what"]
    assert _check(result, "token_top1_effect")["state"] == "fail"


def test_a_gram_session_names_no_model_and_completion_runs_by_the_sealed_one(
    public: Public, audit: Callable[..., Any]
) -> None:
    report = audit(_turned(public.returned(), 24), "gram")
    assert _result(report)["details"]["public_model_accuracy_ratio"] > 0.1
    assert "could not run" not in json.dumps(report)


def test_another_model_than_the_one_that_was_used_is_not_taken(
    public: Public, audit: Callable[..., Any], tiny_model: Callable[[str], Path]
) -> None:
    """The fingerprint of the handshake decides, whatever the plan names."""
    plan = replace(PLAN, response=replace(PLAN.response, source=str(tiny_model("qwen2"))))
    result = _result(audit(public.returned(), plan=plan))
    assert "has other weights" in " ".join(result["notes"])


def test_a_bundle_without_returned_rows_is_not_measured(make_run: Callable[..., Any]) -> None:
    """Said with the reason, never passed."""
    run = make_run(frames=60)
    report = run_audit([run.bundle], key=run.key, plan=PLAN)
    missing = next(entry for entry in report["not_measured"] if entry["attack"] == "model_completion")
    assert "no RETURN frame was captured" in missing["reason"]
    assert report["verdict"]["state"] == "inconclusive"
