"""Evidence that cannot carry a verdict: a clear message, and a refusal or an inconclusive verdict, never a pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.audit import run_audit
from auditor.evidence.duplicates import repeated_documents
from auditor.evidence.inputs import open_evidence
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import split_capture
from auditor.plan import Plan, SplitSettings, StatisticsSettings
from splitwire.bundles import BundleWriter, TruthRecord, TruthWriter, WireRecord, frame_digest
from splitwire.errors import BundleError, SettingsError
from splitwire.frames import encode_frame
from splitwire.v1 import channels_pb2, stack_pb2

PLAN = Plan(
    name="bad",
    attacks=("gradient_support", "row_norm"),
    families=("forward_only", "gradient_only"),
    statistics=StatisticsSettings(repetitions=100),
)
FAMILIES = ("forward_only", "gradient_only", "response_side")
FRAME = {"frame": {"mechanisms": ["decoys", "rotation"]}}


def reasons(report: dict[str, Any], kind: str) -> list[str]:
    return [reason["text"] for reason in report["verdict"]["reasons"] if reason["kind"] == kind]


def audit(*runs: Any) -> dict[str, Any]:
    return run_audit([run.bundle for run in runs], key=runs[0].key, plan=PLAN)


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"gradient": "none"}, "not_measured", "no frame of this hop"),
        ({"with_truth": False}, "evidence", "no truth file"),
        ({"truth_gap": 4}, "evidence", "4 FORWARD frames without truth"),
        ({"dropped": 2}, "evidence", "dropped 2 messages"),
        ({"complete": False}, "evidence", "manifest.json is missing"),
        ({"documents": 19}, "power", "at least 20 are needed"),
    ],
    ids=["no-backward-hop", "no-truth", "gap", "drops", "cut-off", "few-documents"],
)
def test_a_gap_in_the_evidence_is_named_and_inconclusive(
    make_run: Callable[..., Any], changes: dict[str, Any], kind: str, named: str
) -> None:
    report = audit(make_run(**({"gradient": "hidden", "frames": 80} | changes)))
    assert report["verdict"]["exit_code"] == 3
    assert any(named in text for text in reasons(report, kind)), report["verdict"]["reasons"]


def test_an_opening_that_breaks_the_contract_is_named_and_no_attack_stumbles_over_it(
    make_run: Callable[..., Any],
) -> None:
    """A recorder keeps what a peer sent, whatever it is."""
    plan = dataclasses.replace(PLAN, attacks=("row_norm", "model_completion", "nearest_vocabulary"), families=FAMILIES)
    run = make_run(gradient="hidden", frames=80, opening=b"\xff\xfe no message")
    report = run_audit([run.bundle], key=run.key, plan=plan)
    assert report["verdict"]["exit_code"] == 3
    assert "the opening of a session is not of the contract" in reasons(report, "evidence")
    run = make_run(frames=5, opening=stack_pb2.OpenSessionRequest(stack_kind=99).SerializeToString())  # type: ignore[arg-type]
    assert run_audit([run.bundle], key=run.key, plan=PLAN)["verdict"]["exit_code"] == 3


def test_frames_of_a_mode_that_the_plan_leaves_out_keep_it_from_passing(make_run: Callable[..., Any]) -> None:
    """A mode is not taken from the node by leaving it out; generation is read by inversion attacks alone."""
    run, generated = (make_run(gradient="none", frames=8, mode=mode) for mode in (2, 3))
    text = "8 FORWARD frames of the mode {} were not attacked: name it in compute_modes{}"
    for bundle, mode, attack, is_told in (
        (run, "train", "row_norm", True),
        (run, "train", "nearest_vocabulary", True),
        (generated, "cached", "row_norm", True),
        (generated, "cached", "nearest_vocabulary", False),
    ):
        plan = dataclasses.replace(PLAN, compute_modes=("evaluate",), attacks=(attack,))
        report = run_audit([bundle.bundle], key=bundle.key, plan=plan)
        also = ", or an inversion attack in attacks" if mode == "cached" else ""
        assert (text.format(mode, also) in reasons(report, "evidence")) == is_told


def test_a_few_documents_without_exact_zeros_are_no_pass(make_run: Callable[..., Any]) -> None:
    """They are too few to speak for what will cross."""
    run = make_run(gradient="hidden", frames=19, documents=19)
    report = run_audit([run.bundle], key=run.key, plan=dataclasses.replace(PLAN, attacks=("gradient_support",)))
    (check,) = report["results"][0]["checks"]
    assert {"kind": "power", "text": "19 test documents, at least 20 are needed", "subject": ""} in check["reasons"]


def test_without_truth_there_is_no_number_at_all(make_run: Callable[..., Any]) -> None:
    report = audit(make_run(gradient="open", frames=20, with_truth=False))
    assert report["results"] == []
    assert report["captured"]["real_rows_ratio"] is None


@pytest.mark.parametrize("where", ["wire.mcap", "truth.sealed", "manifest.json"])
def test_a_byte_that_was_changed_refuses_the_bundle(make_run: Callable[..., Any], where: str) -> None:
    run = make_run(frames=20)
    content = bytearray((run.bundle / where).read_bytes())
    content[len(content) // 2] ^= 1
    (run.bundle / where).write_bytes(content)
    with pytest.raises(BundleError):
        audit(run)


def test_a_file_that_was_cut_refuses_a_closed_bundle_and_ends_an_open_one(make_run: Callable[..., Any]) -> None:
    closed, opened = make_run(frames=40), make_run(frames=40, complete=False)
    for run in (closed, opened):
        content = (run.bundle / "wire.mcap").read_bytes()
        (run.bundle / "wire.mcap").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(BundleError, match="does not verify"):
        audit(closed)
    report = audit(opened)
    assert report["verdict"]["exit_code"] == 3
    assert any("steps of the truth are in no bundle" in text for text in reasons(report, "evidence"))


def test_a_folder_that_is_no_bundle_and_no_bundle_at_all_are_refused(
    make_run: Callable[..., Any], tmp_path: Path
) -> None:
    run = make_run(frames=5)
    with pytest.raises(BundleError):
        run_audit([tmp_path], key=run.key, plan=PLAN)
    with pytest.raises(SettingsError, match="no bundle is given"):
        run_audit([], key=run.key, plan=PLAN)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (FRAME, {"frame": {"mechanisms": ["decoys"]}}, "frame.mechanisms"),
        ({"gradient": {"policy": "open"}}, {"gradient": {"policy": "clip_noise"}}, "gradient.policy"),
        ({"model": {"last_layer": 3}}, {"model": {"last_layer": 4}}, "model.last_layer"),
    ],
    ids=["mechanisms", "gradient", "model"],
)
def test_bundles_of_two_settings_are_refused_with_the_key(
    make_run: Callable[..., Any], first: dict[str, Any], second: dict[str, Any], named: str
) -> None:
    one, two = make_run(frames=5, settings=first), make_run(frames=5, settings=second, seed=2)
    with pytest.raises(BundleError, match=rf"different settings: {named}"):
        audit(one, two)


def test_bundles_of_one_defence_may_differ_in_where_they_ran(make_run: Callable[..., Any]) -> None:
    runs = [
        make_run(frames=20, seed=seed, session=f"{seed:016x}", settings=FRAME | {"train": {"out": f"run-{seed}"}})
        for seed in (1, 2)
    ]
    assert audit(*runs)["captured"]["frames"] == 40


@pytest.mark.parametrize(
    ("other", "named"),
    [({"width": 12}, "width 8 and of width 12"), ({"transformer": True}, "mix two stacks")],
    ids=["width", "stack"],
)
def test_two_stacks_or_widths_are_refused(make_run: Callable[..., Any], other: dict[str, Any], named: str) -> None:
    one, two = make_run(frames=5), make_run(frames=5, session="0" * 16, **other)
    with pytest.raises(BundleError, match=named):
        audit(one, two)


def write_texts(folder: Path, keys: Path, texts: dict[str, np.ndarray]) -> None:
    """A bundle with one frame a document, which holds the tokens of its text in another order each."""
    generator = np.random.default_rng(5)
    writer = BundleWriter(folder, recorder="tln", settings={})
    with writer, TruthWriter(folder / "truth.sealed", keys / "audit.pub") as truth:
        truth.add_documents([{"id": name, "member": True} for name in texts])
        for number, tokens in enumerate(texts.values()):
            order = generator.permutation(len(tokens))
            header = stack_pb2.FrameHeader(
                hop=channels_pb2.HOP_FORWARD,
                step=number + 1,
                dtype=stack_pb2.WIRE_DTYPE_FP32,
                compute_mode=stack_pb2.COMPUTE_MODE_TRAIN,
            )
            rows = generator.normal(size=(1, len(tokens), 4)).astype(np.float32)
            messages = list(encode_frame(header, torch.from_numpy(rows)))
            for message in messages:
                writer.write(WireRecord(header.hop, "request", "s" * 16, message, 1, 1, "ExchangeRequest"))
            shuffled = tokens[order][None].astype(np.int32)
            document = np.full_like(shuffled, number)
            real = np.ones(shuffled.shape, bool)
            digest = frame_digest(messages)
            truth.add(TruthRecord("s" * 16, number + 1, digest, "train", real, document, shuffled, shuffled, document))


def test_equal_text_under_two_ids_in_two_splits_is_found_whatever_its_order(
    make_run: Callable[..., Any], tmp_path: Path
) -> None:
    keys = make_run(frames=1).keys
    generator = np.random.default_rng(1)
    different = {f"doc-{number}": generator.integers(0, 500, 12) for number in range(40)}
    repeated = different | {f"copy-{number}": different[f"doc-{number}"] for number in range(20)}
    short = {f"doc-{number}": np.zeros(7, np.int64) for number in range(40)}
    found = {}
    for name, texts in (("different", different), ("repeated", repeated), ("short", short)):
        folder = tmp_path / name
        write_texts(folder, keys, texts)
        evidence = open_evidence([folder], key=keys / "audit.key")
        rows = tmp_path / f"{name}-rows"
        rows.mkdir()
        capture = read_capture(evidence.bundles, evidence.truths, compute_modes=("train",), folder=rows)
        found[name] = repeated_documents(capture, split_capture(capture, SplitSettings()))
        capture.close()
    assert found["different"] == found["short"] == 0
    # A pair is in one split with a chance of .42: 20 pairs give 23 documents on average, and 8 with 5 standard errors.
    assert 8 <= found["repeated"] <= 40
    assert found["repeated"] % 2 == 0
    report = run_audit([tmp_path / "repeated"], key=keys / "audit.key", plan=PLAN)
    assert any("stand in two splits under different ids" in text for text in reasons(report, "evidence"))
    assert report["verdict"]["exit_code"] == 3
