"""The exact inverter reads clean, rounded, noisy and sparse rows, and says where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.exact_inverter import ExactInverter
from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.sipit import SipIt
from auditor.plan import InversionSettings
from auditor.progress import silent
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import CapturedText, PromptView
from splitwire.backbone import ModelSettings
from splitwire.frames import quantise_rows

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = InversionSettings()
INVERTER = ExactInverter(public_tokens=2048, single_tokens=264, first_batch=8, num_batches=4)
TEXTS, LENGTH, VOCABULARY = 2, 14, 264


@pytest.fixture(scope="module")
def tokens() -> list[np.ndarray]:
    return list(np.random.default_rng(1).integers(0, VOCABULARY, (TEXTS, LENGTH)))


@pytest.fixture(scope="module")
def clean(tiny_model: Callable[[str], Path], tokens: list[np.ndarray]) -> PromptView:
    model = PublicModel(ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4))
    public = np.random.default_rng(2).integers(0, VOCABULARY, (32, 64))
    with torch.no_grad():
        rows = [model.head(torch.from_numpy(ids)[None])[0] for ids in tokens]
    texts = tuple(CapturedText(each, None, None, None, LENGTH) for each in rows)
    return PromptView("forward_only", texts, model, tuple(public), "fp32", 5)


def changed(view: PromptView, change: Callable[[torch.Tensor], torch.Tensor], wire_dtype: str = "fp32") -> PromptView:
    texts = tuple(replace(text, forward=change(text.forward)) for text in view.texts)
    return replace(view, texts=texts, wire_dtype=wire_dtype)


def noisy(sigma: float) -> Callable[[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return lambda rows: rows + sigma * rows.std() * torch.randn(rows.shape, generator=generator)


def as_int8(rows: torch.Tensor) -> torch.Tensor:
    values, scales = quantise_rows(rows)
    return values.float() * scales[:, None]


def largest_half(rows: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.abs() > rows.abs().median(dim=-1, keepdim=True).values, rows, 0.0)


def right(recovered: list[Recovered], tokens: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([guess.tokens[:-1] == ids for guess, ids in zip(recovered, tokens, strict=True)])


def certainty(recovered: list[Recovered]) -> np.ndarray:
    return np.concatenate([guess.certainty[:-1] for guess in recovered if guess.certainty is not None])


def test_clean_rows_are_read_exactly_in_few_passes(clean: PromptView, tokens: list[np.ndarray]) -> None:
    recovered = INVERTER.run(clean, SETTINGS, silent)
    assert right(recovered, tokens).all()
    assert certainty(recovered).min() > 0.99
    assert all(guess.details["head_tokens"] < 0.9 * LENGTH * VOCABULARY for guess in recovered)
    assert recovered[0].details["fit_seconds"] > 0


@pytest.mark.parametrize(
    ("change", "wire_dtype"),
    [
        (lambda rows: rows.bfloat16().float(), "bf16"),
        (as_int8, "int8"),
        (largest_half, "fp32"),
        (lambda rows: noisy(0.02)(rows).bfloat16().float(), "bf16"),
    ],
    ids=["bf16", "int8", "half", "noise-on-bf16"],
)
def test_what_a_wire_does_to_rows_does_not_hide_the_text(
    clean: PromptView,
    tokens: list[np.ndarray],
    change: Callable[[torch.Tensor], torch.Tensor],
    wire_dtype: str,
) -> None:
    recovered = INVERTER.run(changed(clean, change, wire_dtype), SETTINGS, silent)
    assert right(recovered, tokens).all()


def test_noise_of_a_tenth_of_the_spread_is_read_by_beams(clean: PromptView, tokens: list[np.ndarray]) -> None:
    view = changed(clean, noisy(0.1))
    recovered = INVERTER.run(view, SETTINGS, silent)
    assert right(recovered, tokens).mean() > 0.9
    sigma = 0.1 * float(clean.texts[0].forward.std())
    assert recovered[0].details["noise"] == pytest.approx(sigma, rel=0.25)


@pytest.mark.parametrize("kind", ["noise", "shuffled"])
def test_rows_that_say_nothing_leave_it_at_chance_and_it_says_so(
    clean: PromptView, tokens: list[np.ndarray], kind: str
) -> None:
    generator = torch.Generator().manual_seed(4)
    hide = {
        "noise": lambda rows: rows.std() * torch.randn(rows.shape, generator=generator),
        "shuffled": lambda rows: rows[torch.randperm(len(rows), generator=generator)],
    }[kind]
    recovered = INVERTER.run(changed(clean, hide), SETTINGS, silent)
    assert right(recovered, tokens).mean() < 0.15
    assert certainty(recovered).mean() < 0.3


def test_without_public_text_there_is_nothing_to_learn_from(clean: PromptView) -> None:
    with pytest.raises(NotMeasurableError, match=r"inversion\.auxiliary"):
        INVERTER.run(replace(clean, auxiliary=()), SETTINGS, silent)


def test_sipit_is_exact_and_its_margin_is_that_of_brute_force(clean: PromptView, tokens: list[np.ndarray]) -> None:
    recovered = SipIt(batch=16, margin_positions=3).run(clean, SETTINGS, silent)
    assert right(recovered, tokens).all()
    head = clean.model.head
    for guess, ids in zip(recovered, tokens, strict=True):
        for position, margin in enumerate(guess.details["margins"]):
            texts = np.tile(ids[: position + 1], (VOCABULARY, 1))
            texts[:, -1] = np.arange(VOCABULARY)
            with torch.no_grad():
                rows = head(torch.from_numpy(texts))[:, -1]
            distances = (rows - rows[ids[position]]).norm(dim=-1)
            assert margin == pytest.approx(float(distances.sort().values[1]) / 2, rel=1e-3)


def test_sipit_at_rows_of_noise_accepts_nothing(clean: PromptView, tokens: list[np.ndarray]) -> None:
    generator = torch.Generator().manual_seed(6)
    view = changed(clean, lambda rows: rows.std() * torch.randn(rows.shape, generator=generator))
    recovered = SipIt(batch=64, most_steps=2).run(replace(view, texts=view.texts[:1]), SETTINGS, silent)
    assert certainty(recovered).max() == 0
    assert right(recovered, tokens[:1]).mean() < 0.3


def test_a_prefix_gives_the_rows_of_whole_texts(clean: PromptView, tokens: list[np.ndarray]) -> None:
    head = Prefix(clean.model.head)
    both = torch.from_numpy(np.stack(tokens))
    rows, whole = head.extend(both)
    again, _ = whole.first(5).pick(torch.tensor([1])).extend(both[1:, 5:])
    assert torch.allclose(again[0], rows[1, 5:], atol=1e-5)
    candidates = whole.first(5).candidates(both[:, 5:6])
    assert torch.allclose(candidates[:, 0], rows[:, 5], atol=1e-5)
    assert whole.length == LENGTH
