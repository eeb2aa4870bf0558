"""Labels are read from the gradient at the tail cut, and not where it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.bisr_gradient import BisrBackward
from auditor.attacks.inversion.dlg import DeepLeakage
from auditor.attacks.inversion.label_inference import LabelDirection
from auditor.attacks.inversion.label_norm import LabelNorm
from auditor.attacks.inversion.lamp import LanguageModelPrior, moved
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.attacks.inversion.tag import TransformerGradient
from auditor.plan import InversionSettings
from auditor.progress import silent
from auditor.views.base import NotMeasurableError
from splitwire.backbone import ModelSettings

from .crossed import Crossed, crossed

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = InversionSettings()
CHANCE = 0.15  # of 264 tokens, 32 of which make most of the text
GRADIENT_ATTACKS: dict[str, Any] = {
    "label_inference": LabelDirection(),
    "bisr_gradient": BisrBackward(
        hidden_width=48, inverter_learning_rate=1e-2, num_epochs=8, piece_positions=12, num_steps=6
    ),
    "dlg": DeepLeakage(num_steps=30),
    "tag": TransformerGradient(num_steps=30),
    "lamp": LanguageModelPrior(num_steps=40, steps_between_moves=20, candidates=3, learning_rate=0.3),
}


@pytest.fixture(scope="module")
def training(tiny_model: Callable[[str], Path]) -> Crossed:
    return crossed(ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4), texts=2, auxiliary=60)


@pytest.mark.parametrize("name", GRADIENT_ATTACKS)
def test_open_gradients_tell_labels_and_others_do_not(training: Crossed, name: str) -> None:
    """Read from the rows that crossed; at chance where rows change places, and where they are noise."""
    attack = GRADIENT_ATTACKS[name]
    found = training.accuracy(attack.run(training.view, SETTINGS, silent), first=1)
    assert found > 0.4
    shuffled, noise = training.shuffled(), training.noise()
    assert shuffled.accuracy(attack.run(shuffled.view, SETTINGS, silent), first=1) < CHANCE
    assert noise.accuracy(attack.run(noise.view, SETTINGS, silent), first=1) < CHANCE


def test_direction_is_read_whatever_the_weight_of_a_row_and_with_noise(training: Crossed) -> None:
    """A sum in place of a mean, and noise of a tenth of the gradient, change no label; the certainty falls."""
    generator = torch.Generator().manual_seed(1)
    texts = []
    for text in training.view.texts:
        assert text.gradient is not None
        noise = 0.1 * text.gradient.norm() * torch.randn(text.gradient.shape, generator=generator)
        texts.append(replace(text, gradient=1e3 * (text.gradient + noise / text.gradient.numel() ** 0.5)))
    noisy = LabelDirection().run(replace(training.view, texts=tuple(texts)), SETTINGS, silent)
    clean = LabelDirection().run(training.view, SETTINGS, silent)
    assert training.accuracy(clean, first=1) == 1
    assert training.accuracy(noisy, first=1) > 0.9
    assert _certainty(noisy) < _certainty(clean)


def test_the_norm_adds_something_to_what_the_model_foresees(training: Crossed) -> None:
    """Foreseen tokens are found and little else: far less than by direction."""
    recovered = LabelNorm(pieces=6).run(training.view, SETTINGS, silent)
    assert 0 < training.accuracy(recovered, first=1) < 0.6
    noise = training.noise()
    assert noise.accuracy(LabelNorm(pieces=6).run(noise.view, SETTINGS, silent), first=1) < CHANCE


def test_products_with_the_jacobian_are_those_of_the_loss(training: Crossed) -> None:
    """The gradient of one-hot labels is what crossed, times the number of labels; push is the transpose of pull."""
    text = training.view.texts[0]
    gradient = TailGradient(training.view.model, text, "cpu")
    labels = torch.nn.functional.one_hot(torch.from_numpy(training.tokens[0][1:]), len(gradient.head_weight)).float()
    torch.testing.assert_close(gradient.of_labels(labels) / len(labels), gradient.observed, rtol=1e-4, atol=1e-7)
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.randn(gradient.normed.shape, generator=generator) for _ in range(2))
    torch.testing.assert_close(
        (gradient.push(left) * right).sum(), (left * gradient.pull(right)).sum(), rtol=1e-3, atol=1e-3
    )


def test_a_row_without_gradient_gets_no_label(training: Crossed) -> None:
    """A position that bears no loss, as the last of a padded text, is not guessed at."""
    text = training.view.texts[0]
    assert text.gradient is not None
    cut = text.gradient.clone()
    cut[-1] = 0
    view = replace(training.view, texts=(replace(text, gradient=cut),))
    assert LabelDirection().run(view, SETTINGS, silent)[0].tokens[-1] == NO_GUESS


def test_a_hop_that_was_not_captured_is_named(training: Crossed) -> None:
    text = training.view.texts[0]
    for hop, name in (("gradient", "BACKWARD"), ("returned", "RETURN")):
        view = replace(training.view, texts=(replace(text, **{hop: None}),))
        with pytest.raises(NotMeasurableError, match=name):
            LabelDirection().run(view, SETTINGS, silent)


def test_the_same_seed_gives_the_same_guess(training: Crossed) -> None:
    first, second = (GRADIENT_ATTACKS["lamp"].run(training.view, SETTINGS, silent)[0] for _ in range(2))
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert first.details == second.details


def test_moves_are_orders() -> None:
    """Nothing is lost or doubled, and all four change something sooner or later."""
    generator = torch.Generator().manual_seed(4)
    orders = [moved(7, generator).tolist() for _ in range(200)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert len({tuple(order) for order in orders}) > 50


def _certainty(recovered: list[Any]) -> float:
    return float(np.mean([guess.certainty[1:].mean() for guess in recovered]))
