"""Attacks on both sides read a greedy answer from the returned rows to the letter, and the prompt from forward rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.dsi import DualSidedStart
from auditor.attacks.inversion.pidi import Pidi
from auditor.attacks.inversion.pmi import PatchedModelInversion
from auditor.channels import RESPONSE_SIDE
from auditor.plan import InversionSettings
from auditor.progress import silent
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, PromptView
from splitwire.backbone import ModelSettings

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = InversionSettings()
PROMPT, ANSWER = 4, 6
_INVERTER = {"hidden_width": 16, "num_epochs": 1, "piece_positions": 10}
ATTACKS: dict[str, Any] = {
    "dsi": DualSidedStart(**_INVERTER),
    "pidi": Pidi(**_INVERTER, patch_positions=4, patch_steps=2, joint_steps=2),
}


@dataclass(frozen=True, eq=False)
class Answered:
    """A view of one answered prompt, and its tokens [T + 1]."""

    view: PromptView
    tokens: np.ndarray

    def with_text(self, **changes: Any) -> PromptView:
        """The view with another capture of the text."""
        return replace(self.view, texts=(replace(self.view.texts[0], **changes),))


@pytest.fixture(scope="module")
def answered(tiny_model: Callable[[str], Path]) -> Answered:
    model = PublicModel(ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4))
    drawn = np.random.default_rng(12)
    tokens_1T = torch.from_numpy(drawn.integers(0, 256, (1, PROMPT)))
    with torch.no_grad():
        for _ in range(ANSWER):
            logits_1V = model.tail.logits(model.tail(model.middle(model.head(tokens_1T)))[:, -1])
            tokens_1T = torch.cat([tokens_1T, logits_1V.argmax(-1, keepdim=True)], dim=1)
        forward_1TH = model.head(tokens_1T[:, :-1])
        text = CapturedText(forward_1TH[0], model.middle(forward_1TH)[0], None, None, PROMPT)
    auxiliary = tuple(drawn.integers(0, 256, 10) for _ in range(20))
    return Answered(PromptView(RESPONSE_SIDE, (text,), model, auxiliary, "fp32", 5), tokens_1T[0].numpy())


@pytest.mark.parametrize("name", ATTACKS)
def test_answer_is_read_from_returned_rows(name: str, answered: Answered) -> None:
    (guess,) = ATTACKS[name].run(answered.view, SETTINGS, silent)
    assert np.array_equal(guess.tokens[PROMPT:], answered.tokens[PROMPT:])
    assert not np.array_equal(guess.tokens[:PROMPT], answered.tokens[:PROMPT])  # the inverter had one pass to learn


@pytest.mark.parametrize("name", ATTACKS)
def test_returned_rows_of_other_positions_give_no_answer(name: str, answered: Answered) -> None:
    returned = answered.view.texts[0].returned
    assert returned is not None
    noise = returned.std() * torch.randn(returned.shape, generator=torch.Generator().manual_seed(1))
    (guess,) = ATTACKS[name].run(answered.with_text(returned=noise), SETTINGS, silent)
    assert (guess.tokens[PROMPT:] == answered.tokens[PROMPT:]).mean() < 0.5


@pytest.mark.parametrize("name", ATTACKS)
def test_without_returned_rows_all_is_prompt(name: str, answered: Answered) -> None:
    (guess,) = ATTACKS[name].run(answered.with_text(returned=None), SETTINGS, silent)
    assert guess.tokens[-1] == NO_GUESS
    assert (guess.tokens[:-1] != NO_GUESS).all()


def test_refining_moves_a_wrong_start_to_the_prompt(answered: Answered) -> None:
    near = PatchedModelInversion(
        start="random", patch_positions=5, patch_steps=120, joint_steps=60, learning_rate=0.05, distance="cosine"
    )
    (guess,) = near.run(answered.view, SETTINGS, silent)
    assert (guess.tokens[:-1] == answered.tokens[:-1]).mean() >= 0.4
    assert guess.details["num_steps"] <= 2 * 120 + 60
