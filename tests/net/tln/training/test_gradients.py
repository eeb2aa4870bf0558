"""What gradients show under each policy, and what training does to the loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitwire.bundles import open_bundle
from splitwire.v1 import channels_pb2
from tests.net.tln.training.runs import (
    CLIPPED,
    LATENT,
    OPEN,
    WIDE,
    Run,
)


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
def test_an_open_gradient_shows_the_decoys_and_a_clipped_one_does_not(
    run: Callable[..., Run], stack: dict[str, Any]
) -> None:
    """Open: the rows that are exactly zero are exactly the decoys, in every frame."""
    done = run(stack, OPEN)
    truth, frames = done.truth(), list(done.frames(channels_pb2.HOP_BACKWARD))
    assert len(frames) == 4
    for frame in frames:
        nonzero = frame.tensor.any(dim=-1).numpy()
        assert np.array_equal(nonzero, truth.records[(frame.session_hash, frame.header.step)].real)
    assert done.defence["gradient"] == {"policy": "open", "unsafe": True}


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
def test_a_clipped_gradient_has_no_zero_row(run: Callable[..., Run], stack: dict[str, Any]) -> None:
    """Every row of every BACKWARD frame carries noise at the announced scale."""
    done = run(stack, CLIPPED)
    sigma = done.defence["gradient"]["sigma"]
    for frame in done.frames(channels_pb2.HOP_BACKWARD):
        assert frame.tensor.any(dim=-1).all()
        decoys = frame.tensor[~torch.from_numpy(done.truth().records[(frame.session_hash, frame.header.step)].real)]
        assert decoys.std().item() == pytest.approx(sigma, rel=0.1)


def test_training_lowers_the_loss_on_both_nodes(run: Callable[..., Run]) -> None:
    """Full training of the middle over the wire, head and tail trained here, tied weights too."""
    done = run(
        WIDE,
        OPEN,
        {"train": {"steps": 25, "learning_rate": 3e-3, "train_head": True, "train_tail": True, "warmup_steps": 3}},
    )
    history = done.report.history
    assert np.mean(history.loss[-5:]) < np.mean(history.loss[:5]) - 0.5
    assert done.report.utility.outcome == "passes"
    assert done.report.utility.delta_nats < 0


def test_the_report_is_numbers_with_the_effective_defence(run: Callable[..., Run]) -> None:
    """report.json tells settings, hash and defence, and what the bundle tells is the same."""
    done = run(LATENT, CLIPPED)
    report = json.loads((Path(done.settings.train.out) / "report.json").read_text())
    bundle = open_bundle(done.bundle)
    assert report["defence"] == bundle.settings["defence"] == done.defence
    assert report["settings_hash"] == bundle.settings["settings_hash"]
    assert list(report["defence"]["frame"]) == ["bottleneck", "clip", "decoys", "noise", "permutation", "rotation"]
    assert report["utility"]["num_documents"] == done.report.utility.num_documents
    assert len(report["loss_by_step"]) == 4
