"""Sequences of a training bundle, with their gradients, are read as texts; what hides them keeps them from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.attacks import ATTACKS
from auditor.audit import run_audit
from auditor.calibration.run import run_calibration
from auditor.channels import GRADIENT_ONLY
from auditor.comparing.run import Comparison, inversion_attacks
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import CalibrationSettings, InversionSettings, Plan, StatisticsSettings
from auditor.progress import silent
from auditor.views.base import DoesNotApplyError
from auditor.views.prompt_capture import Grants, prompt_view
from splitwire.backbone import ModelSettings, identity, load_head, load_middle, load_tail
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.frames import encode_frame
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2
from tests.unit.auditor.test_every_inversion import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")

SESSION = "5e55107a5e55107a"
DOCUMENTS, BATCH, LENGTH = 24, 6, 6
SHORT = 2
"""The last sequence of every batch is shorter by so much, and a decoy."""
PLAN = Plan(
    attacks=("label_inference",),
    families=(GRADIENT_ONLY,),
    scope=(GRADIENT_ONLY,),
    statistics=StatisticsSettings(repetitions=300),
    inversion=InversionSettings(max_texts=30, parameters={"label_inference": {"solver_steps": 4}}),
    calibration=CalibrationSettings(coverages=(1.0,), repetitions=1),
)
_HOPS = (
    (channels_pb2.HOP_FORWARD, "request"),
    (channels_pb2.HOP_RETURN, "response"),
    (channels_pb2.HOP_BACKWARD, "request"),
    (channels_pb2.HOP_INPUT_GRADIENT, "response"),
)


@pytest.fixture(scope="module")
def settings(tiny_model: Callable[[str], Path]) -> ModelSettings:
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


@pytest.fixture(scope="module")
def record(settings: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """record(hides=...) -> a bundle of two epochs over the documents, and its key."""
    keys = tmp_path_factory.mktemp("keys") / "audit"
    write_audit_keys(keys)

    def make(*, hides: bool = False) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("training") / "bundle"
        told = {"settings": {"model": {"source": settings.source}}}
        writer = BundleWriter(
            folder, recorder="tln", settings=told, signing_key=load_signing_key(keys / "tln-recorder.key")
        )
        with TruthWriter(folder / "truth.sealed", keys / "audit.pub", {"vocabulary_size": 264}) as truth:
            truth.add_documents([{"id": f"doc-{number}", "member": True} for number in range(DOCUMENTS)])
            request = stack_pb2.OpenSessionRequest(
                protocol_version=1, stack_kind=stack_pb2.STACK_KIND_TRANSFORMER, model=identity(settings)
            )
            _write(writer, channels_pb2.HOP_CONTROL, "OpenSessionRequest", request.SerializeToString(), 0)
            _train(settings, writer, truth, hides=hides)
        writer.close(num_dropped=0)
        return folder, keys / "audit.key"

    return make


def _train(settings: ModelSettings, writer: BundleWriter, truth: TruthWriter, *, hides: bool) -> None:
    head, middle, tail = load_head(settings), load_middle(settings), load_tail(settings)
    texts = torch.randint(0, 256, (DOCUMENTS, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    lengths = [LENGTH] * (BATCH - 1) + [LENGTH - SHORT]
    batches = [*range(0, DOCUMENTS, BATCH)] * 2
    for step, start in enumerate(batches, start=1):
        ids = texts[start : start + BATCH]
        rows = head(ids[:, :-1]).detach().requires_grad_()
        returned = middle(rows)
        logits = tail.logits(tail(returned))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        tensors = [rows.detach(), returned.detach(), *torch.autograd.grad(loss, (returned, rows))]
        if hides:
            generator = torch.Generator().manual_seed(step)
            tensors = [tensor.std() * torch.randn(tensor.shape, generator=generator) for tensor in tensors]
        digest = ""
        for (hop, direction), tensor in zip(_HOPS, tensors, strict=True):
            header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
            if hop == channels_pb2.HOP_FORWARD:
                header.compute_mode = stack_pb2.COMPUTE_MODE_TRAIN
                header.row_lengths[:], header.padding_side = lengths, stack_pb2.PADDING_SIDE_RIGHT
            messages = list(encode_frame(header, tensor))
            kind = "ExchangeRequest" if direction == "request" else "ExchangeResponse"
            for message in messages:
                _write(writer, hop, kind, message, step)
            digest = digest or frame_digest(messages)
        _tell(truth, step, digest, ids.numpy().astype(np.int32), start)


def _tell(truth: TruthWriter, step: int, digest: str, ids: np.ndarray, start: int) -> None:
    shape = (BATCH, LENGTH)
    real = np.ones(shape, bool)
    real[-1] = False
    order = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape).copy()
    document = np.broadcast_to(np.arange(start, start + BATCH, dtype=np.int32)[:, None], shape).copy()
    token, label = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
    truth.add(TruthRecord(SESSION, step, digest, "train", real, order, token, label, document))


def _write(writer: BundleWriter, hop: Any, kind: str, message: bytes, step: int) -> None:
    direction: Any = "response" if kind.endswith("Response") else "request"
    writer.write(WireRecord(hop, direction, SESSION, message, step, step, kind))


def test_sequences_are_texts_with_their_gradients(record: Callable[..., Any], settings: ModelSettings) -> None:
    """Each document once however many epochs, no decoy, every hop as it crossed."""
    bundle, key_file = record()
    with opened_material(open_evidence([bundle], key=key_file), PLAN, silent) as opened:
        view, key = prompt_view(opened.material, GRADIENT_ONLY, PLAN, Grants(training=True))
        with pytest.raises(DoesNotApplyError, match="bundle of training"):
            prompt_view(opened.material, GRADIENT_ONLY, PLAN, Grants())
    assert len(view.texts) == DOCUMENTS - DOCUMENTS // BATCH
    assert len({text.document for text in key.texts}) == len(view.texts)
    head = load_head(settings)
    for text, answer in zip(view.texts, key.texts, strict=True):
        assert len(answer.tokens) == LENGTH + 1
        assert text.gradient is not None
        assert text.input_gradient is not None
        assert text.gradient.shape == text.input_gradient.shape == text.forward.shape
        with torch.no_grad():
            expected = head(torch.from_numpy(answer.tokens[:-1])[None])[0]
        torch.testing.assert_close(text.forward, expected, rtol=1e-4, atol=1e-4)


def test_raw_gradients_fail_and_hidden_ones_do_not(record: Callable[..., Any]) -> None:
    """The control is found either way."""
    reports = [run_audit([bundle], key=key, plan=PLAN) for bundle, key in (record(), record(hides=True))]
    raw, hidden = (report["results"][0] for report in reports)
    assert raw["checks"][0]["state"] == "fail"
    assert hidden["checks"][0]["state"] == "inconclusive"
    assert hidden["checks"][0]["upper"] < raw["checks"][0]["lower"]
    assert raw["controls"][0]["found"]
    assert hidden["controls"][0]["found"]


def test_a_dose_of_naked_rows_is_found(record: Callable[..., Any]) -> None:
    """All of them break the ceiling; none reads what the scorer reads."""
    bundle, key = record(hides=True)
    tree = run_calibration([bundle], key=key, plan=PLAN)
    (part,) = tree["calibrated"]
    (ladder,) = part["ladders"]
    assert ladder["metric"] == "text_token_effect"
    assert ladder["rungs"][-1]["num_broken"] == 1
    assert ladder["rungs"][0]["num_detected"] == 0
    (check,) = run_audit([bundle], key=key, plan=PLAN)["results"][0]["checks"]
    assert ladder["rungs"][0]["values"][0] == pytest.approx(check["value"])


@pytest.mark.parametrize("name", [name for name in inversion_attacks() if ATTACKS[name].question == "training_text"])
def test_a_comparison_runs_every_attack_on_training(name: str, record: Callable[..., Any], tmp_path: Path) -> None:
    """From the bundle to the table, with parameters that make it short."""
    bundle, key = record()
    plan = plan_of(name)
    compared = Comparison((name,), key=key, plan=plan).run([bundle], tmp_path / "parts", silent)
    assert compared.failures == ()
    assert all(cell.num_texts == 2 for cell in compared.cells)
    assert {cell.family for cell in compared.cells} == set(ATTACKS[name].families)
