"""Every kind of decoy over the wire, and adversaries beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitwire.bundles import verify_bundle
from splitwire.v1 import channels_pb2
from tests.net.tln.training.runs import (
    BLOCK,
    LATENT,
    OPEN,
    QUIET,
    WHOLE_BLOCKS,
    WIDE,
    Run,
    with_decoys,
)
from tln.training.prepare import load_texts
from tln.training.results_folder import REPORT_FILE


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
@pytest.mark.parametrize("policy", ["matched", "replay"])
def test_decoys_that_bear_loss_have_gradients_as_long_as_real_ones(
    run: Callable[..., Run], stack: dict[str, Any], policy: str
) -> None:
    """With next to no noise, under which clip_noise would show every decoy, none is short; the truth joins."""
    done = run(stack, WHOLE_BLOCKS if stack is LATENT else {}, QUIET, {"gradient": {"policy": policy}})
    assert done.defence["gradient"]["policy"] == policy
    assert verify_bundle(done.bundle, done.keys / "trust.json").is_good
    truth, frames = done.truth(), list(done.frames(channels_pb2.HOP_BACKWARD))
    assert len(frames) == 4
    for frame in frames:
        norms = frame.tensor.norm(dim=-1)
        real = torch.from_numpy(truth.records[(frame.session_hash, frame.header.step)].real)
        assert 0 < real.sum() < real.numel()
        assert norms[~real].min() > 100 * done.defence["gradient"]["sigma"]
        assert 0.3 < norms[~real].median() / norms[real].median() < 3


def test_replayed_decoys_are_whole_training_blocks_with_their_context(run: Callable[..., Run]) -> None:
    """Each frame holds its block and two others, every position of each; the two are not real and train too."""
    done = run(LATENT, WHOLE_BLOCKS, {"gradient": {"policy": "replay"}})
    truth = done.truth()
    texts = load_texts(done.settings.model, done.settings.corpus).private
    blocks = {(int(document), *row) for row, document in zip(texts.tokens.tolist(), texts.documents, strict=True)}
    num_seen = 0
    for record in truth.records.values():
        if record.phase != "train":
            continue
        for real, order, token, document in zip(record.real, record.order, record.token, record.document, strict=True):
            assert real.sum() == BLOCK
            assert np.bincount(order, minlength=BLOCK).tolist() == [3] * BLOCK
            assert all(truth.documents[index]["member"] for index in document)
            for name in np.unique(document):
                rows = document == name
                if rows.sum() == BLOCK:  # else two blocks of one document are mixed in the frame's order
                    assert len(set(real[rows])) == 1
                    assert (name, *token[rows][np.argsort(order[rows])].tolist()) in blocks
                    num_seen += not real[rows].any()
    assert num_seen > 10
    assert len(done.report.history.loss) == 4


def test_a_varying_number_of_real_rows_shows_in_the_truth_alone(run: Callable[..., Run]) -> None:
    """Frames keep their size; rows that are not sent bear no loss, and what stands there is a decoy in the truth."""
    done = run(LATENT, with_decoys(min_real_rows=3), OPEN)
    truth = done.truth()
    assert {tuple(frame.tensor.shape[1:]) for frame in done.frames(channels_pb2.HOP_FORWARD)} == {(BLOCK + 12, 8)}
    counts: set[int] = set()
    for frame in done.frames(channels_pb2.HOP_BACKWARD):
        record = truth.records[(frame.session_hash, frame.header.step)]
        assert np.array_equal(frame.tensor.any(dim=-1).numpy(), record.real)
        for real, order in zip(record.real, record.order, strict=True):
            assert sorted(order[real].tolist()) == list(range(real.sum()))
        counts |= set(record.real.sum(axis=1).tolist())
    assert counts <= set(range(3, BLOCK + 1))
    assert len(counts) > 2


@pytest.mark.parametrize("kind", ["reencoded", "published"])
def test_the_truth_names_every_kind_of_decoy(run: Callable[..., Run], kind: str) -> None:
    """An open gradient shows exactly the decoys that the truth names, and the kind is announced."""
    done = run(
        LATENT,
        with_decoys(kind=kind),
        OPEN,
        {"frame": {**with_decoys(kind=kind)["frame"], "unsafe": kind == "published"}},
    )
    assert done.defence["frame"]["decoys"]["kind"] == kind
    assert done.defence["frame"]["decoys"].get("unsafe", False) == (kind == "published")
    truth = done.truth()
    for frame in done.frames(channels_pb2.HOP_BACKWARD):
        record = truth.records[(frame.session_hash, frame.header.step)]
        assert np.array_equal(frame.tensor.any(dim=-1).numpy(), record.real)
        assert (record.real.sum(axis=1) == BLOCK).all()
        assert all(truth.documents[index]["member"] for index in record.document.flatten())


@pytest.mark.parametrize(
    "layers",
    [
        (LATENT, {"frame": {"mechanisms": [*LATENT["frame"]["mechanisms"], "mixup"], "mixup": {"pool_size": 60}}}),
        (LATENT, with_decoys(kind="reencoded")),
        (LATENT, with_decoys(min_real_rows=3)),
        (LATENT, WHOLE_BLOCKS, {"gradient": {"policy": "replay"}}),
        (LATENT, {"gradient": {"policy": "matched"}}),
    ],
    ids=["mixup", "reencoded", "varying", "replay", "matched"],
)
def test_adversaries_work_with_every_kind_of_frame_and_nothing_of_theirs_crosses(
    run: Callable[..., Run], layers: tuple[dict[str, Any], ...]
) -> None:
    """As many frames of the same shapes as without; the defence names them, the report has each of their steps."""
    adversaries = {"heads": ["token", "property", "reconstruction"], "mine_weight": 0.1, "gram_weight": 0.1}
    done = run(*layers, {"adversaries": {**adversaries, "warmup_steps": 1, "hidden_width": 16}})
    assert verify_bundle(done.bundle, done.keys / "trust.json").is_good
    assert done.defence["adversaries"]["heads"] == "property, reconstruction, token"
    assert "no certificate" in done.defence["adversaries"]["mine"]
    told = json.loads((Path(done.settings.train.out) / REPORT_FILE).read_text())["adversaries"]
    losses = {name for name in told if name != "seconds_a_step"}
    assert losses == {f"{name}_by_step" for name in ("token", "property", "reconstruction", "mine_nats", "gram_spread")}
    assert all(len(told[name]) == 4 and np.isfinite(told[name]).all() for name in losses)
    assert told["seconds_a_step"] > 0
    backward = [tuple(frame.tensor.shape) for frame in done.frames(channels_pb2.HOP_BACKWARD)]
    width = BLOCK + done.settings.frame.decoys.count
    assert backward == [(6, width, 8)] * 4
