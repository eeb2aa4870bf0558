"""What a run leaves: a signed bundle, its sealed truth, the run key, and nothing private outside of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitwire.bundles import verify_bundle
from splitwire.sealing import load_sealing_private_key, open_sealed
from splitwire.v1 import channels_pb2
from tests.net.tln.training.runs import (
    BLOCK,
    CLIPPED,
    LATENT,
    MARKER,
    NUM_DOCUMENTS,
    WIDE,
    Run,
    charged_rows,
)
from tln.keys import FrameKeys, RunKey
from tln.recording import RUN_KEY_FILE


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
def test_a_run_leaves_a_signed_bundle_whose_truth_joins(run: Callable[..., Run], stack: dict[str, Any]) -> None:
    """Every FORWARD frame has its truth under its own digest, and the manifest covers truth and run key."""
    done = run(stack, CLIPPED)
    verified = verify_bundle(done.bundle, done.keys / "trust.json")
    assert verified.problems == []
    assert verified.is_complete
    assert verified.is_signed
    truth = done.truth()
    assert truth.is_complete
    forwards = list(done.frames(channels_pb2.HOP_FORWARD))
    assert len(forwards) == len(truth.records)
    for frame in forwards:
        record = truth.records[(frame.session_hash, frame.header.step)]
        assert record.forward_digest == frame.message_digest
        assert record.real.shape == tuple(frame.tensor.shape[:2])
    assert {record.phase for record in truth.records.values()} == {"train", "evaluate"}


def test_latent_frames_have_one_size_and_the_stated_decoys(run: Callable[..., Run]) -> None:
    """Evaluation on prefixes too: the number of real rows cannot be read from a frame's shape."""
    done = run(LATENT, CLIPPED)
    truth = done.truth()
    assert {tuple(frame.tensor.shape[1:]) for frame in done.frames(channels_pb2.HOP_FORWARD)} == {(BLOCK + 12, 8)}
    for record in truth.records.values():
        counts = set(record.real.sum(axis=1).tolist())
        assert counts == {BLOCK} if record.phase == "train" else len(counts) == 1


def test_the_documents_are_sealed_with_their_membership(run: Callable[..., Run]) -> None:
    """A fifth is held out; held-out documents never train, and are the only ones evaluated."""
    done = run(LATENT, CLIPPED)
    truth = done.truth()
    assert len(truth.documents) == NUM_DOCUMENTS
    assert sum(not document["member"] for document in truth.documents) == 3 == done.report.non_members
    members = np.array([document["member"] for document in truth.documents])
    for record in truth.records.values():
        assert (members[record.document[record.real]] == (record.phase == "train")).all()
        assert members[record.document[~record.real]].all()


def test_nothing_private_is_left_unsealed(run: Callable[..., Run]) -> None:
    """The planted marker, in text and ids, is in no file of the run; the run key opens for the auditor alone."""
    done = run(LATENT, CLIPPED)
    key = load_sealing_private_key(done.keys / "audit.key")
    secret = open_sealed((done.bundle / RUN_KEY_FILE).read_bytes(), key, "run-key")
    files = [*done.bundle.iterdir(), *Path(done.settings.train.out).iterdir()]
    assert len(files) >= 6
    for file in files:
        content = file.read_bytes()
        assert MARKER.encode() not in content, file.name
        assert secret not in content, file.name
        assert secret.hex().encode() not in content, file.name


def test_the_run_key_replays_the_noise(run: Callable[..., Run]) -> None:
    """An auditor with the run key finds the gradient noise of each step again: decoy rows are noise alone."""
    done = run(WIDE, CLIPPED)
    secret = open_sealed(
        (done.bundle / RUN_KEY_FILE).read_bytes(), load_sealing_private_key(done.keys / "audit.key"), "run-key"
    )
    frame = next(iter(done.frames(channels_pb2.HOP_BACKWARD)))
    keys = FrameKeys(RunKey(secret), frame.session_hash)
    noise = keys.stream(frame.header.step, "gradient-noise").gaussian_like(
        frame.tensor, done.defence["gradient"]["sigma"]
    )
    decoys = ~torch.from_numpy(done.truth().records[(frame.session_hash, frame.header.step)].real)
    assert torch.equal(frame.tensor[decoys], noise[decoys])


@pytest.mark.parametrize("defended", [LATENT, WIDE], ids=["latent", "wide"])
def test_the_ledger_charges_what_the_sealed_truth_says_crossed(
    defended: dict[str, Any], run: Callable[..., Run]
) -> None:
    """Rows, decoy reuse and gradient rows of the document charged most, counted again from the truth; no claim."""
    done = run(defended, CLIPPED)
    ledger = json.loads((Path(done.settings.train.out) / "report.json").read_text())["ledger"]
    counts = charged_rows(done.truth().records.values(), len(done.truth().documents))
    for name, rows in counts.items():
        assert ledger[f"most_{name}_rows_of_a_document"] == rows.max() > 0
    assert ledger["claim"] == "no DP claim"
    assert ledger["epsilon"] is None
