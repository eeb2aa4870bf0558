"""The nearest row of the vocabulary: what little mixing leaves is read, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.nearest_vocabulary import NearestVocabulary
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import silent
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, PromptView
from splitwire.backbone import ModelSettings

TEXTS, LENGTH = 6, 20


@pytest.fixture
def shallow(tiny_model: Callable[[str], Path]) -> tuple[PromptView, np.ndarray]:
    """Rows after one layer, whose branches are small beside what goes past them, and the tokens [N, T]."""
    model = PublicModel(ModelSettings(source=str(tiny_model("llama")), first_layer=1, last_layer=4))
    for name, parameter in model.head.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.mul_(0.2)
    tokens = torch.stack(
        [torch.randperm(256, generator=torch.Generator().manual_seed(n))[:LENGTH] for n in range(TEXTS)]
    )
    with torch.no_grad():
        rows = model.head(tokens)
    texts = tuple(CapturedText(row, None, None, None, LENGTH) for row in rows)
    return PromptView(FORWARD_ONLY, texts, model, (), "fp32", 1), tokens.numpy()


@pytest.mark.parametrize(
    "attack",
    [
        NearestVocabulary(),
        NearestVocabulary(distance="euclidean"),
        NearestVocabulary(candidates="embedding"),
        NearestVocabulary(candidates="embedding", distance="euclidean"),
    ],
)
def test_tokens_are_named_at_their_place(attack: NearestVocabulary, shallow: tuple[PromptView, np.ndarray]) -> None:
    """Clearly above chance on open rows; at chance where rows stand elsewhere or say nothing."""
    view, tokens = shallow
    assert _accuracy(attack, view, tokens) > 0.5
    moved = replace(view, texts=tuple(replace(text, forward=text.forward.roll(1, 0)) for text in view.texts))
    assert _accuracy(attack, moved, tokens) < 0.05
    generator = torch.Generator().manual_seed(3)
    noise = [torch.randn(text.forward.shape, generator=generator) for text in view.texts]
    texts = tuple(replace(text, forward=rows) for text, rows in zip(view.texts, noise, strict=True))
    assert _accuracy(attack, replace(view, texts=texts), tokens) < 0.05


def _accuracy(attack: NearestVocabulary, view: PromptView, tokens: np.ndarray) -> float:
    found = attack.run(view, InversionSettings(), silent)
    assert all(guess.tokens[-1] == NO_GUESS for guess in found)
    assert "fit_seconds" in found[0].details
    return float(np.mean([guess.tokens[:-1] == true for guess, true in zip(found, tokens, strict=True)]))
