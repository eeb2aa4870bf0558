"""Rows are told to be of the model that made them, of one derived from it, and of none that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from auditor.arrays import Integers
from auditor.attacks.inversion.model_identification import Identified, ModelIdentification
from auditor.progress import silent
from auditor.public_model import PublicModel
from splitwire.backbone import ModelSettings

pytestmark = pytest.mark.usefixtures("one_thread")

HOW = ModelIdentification(num_epochs=10, learning_rate=5e-3, batch_rows=64, piece_positions=16, num_pieces=80)
Identify = Callable[[list[torch.Tensor], list[str]], Identified]


@pytest.fixture(scope="module")
def public(tiny_model: Callable[[str], Path]) -> Callable[[str], PublicModel]:
    return lambda family: PublicModel(ModelSettings(source=str(tiny_model(family)), first_layer=2, last_layer=4))


@pytest.fixture(scope="module")
def texts() -> list[Integers]:
    return list(np.random.default_rng(4).integers(0, 256, (90, 16)))


@pytest.fixture(scope="module")
def identify(public: Callable[[str], PublicModel], texts: list[Integers]) -> Identify:
    def run(rows: list[torch.Tensor], families: list[str]) -> Identified:
        candidates = [(public(family), texts[:80]) for family in families]
        return HOW.identify(rows, candidates, seed=3, device="cpu", progress=silent)

    return run


@torch.no_grad()
def _rows(model: PublicModel, texts: list[Integers], noise: float = 0.0) -> list[torch.Tensor]:
    """Rows of the last texts; with noise on the weights, of a model that is derived from this one."""
    generator = torch.Generator().manual_seed(6)
    for parameter in model.head.parameters() if noise else ():
        parameter.add_(noise * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return [model.head(torch.from_numpy(text)[None])[0] for text in texts[80:]]


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_model_and_what_derives_from_it_are_named(
    public: Callable[[str], PublicModel], texts: list[Integers], identify: Identify, noise: float
) -> None:
    """The right one of two has an error ratio near 1, the other one far above it."""
    found = identify(_rows(public("llama"), texts, noise), ["gpt2", "llama"])
    assert found.chosen == 1
    wrong, right = found.error_ratios
    assert wrong is not None
    assert right is not None
    assert right < 1.5 < wrong


def test_a_model_that_nobody_offers_is_not_named(
    public: Callable[[str], PublicModel], texts: list[Integers], identify: Identify
) -> None:
    """Nor is one whose rows have another width."""
    rows = _rows(public("gpt2"), texts)
    assert identify(rows, ["llama"]).chosen is None
    narrow = [row[:, :40] for row in rows]
    assert identify(narrow, ["gpt2"]) == Identified((None,), None)


def test_the_threshold_decides(public: Callable[[str], PublicModel], texts: list[Integers]) -> None:
    model = public("llama")
    rows = _rows(model, texts)
    strict = replace(HOW, threshold=0.01)
    found = strict.identify(rows, [(model, texts[:80])], seed=3, device="cpu", progress=silent)
    assert found.chosen is None
    assert found.error_ratios[0] is not None
