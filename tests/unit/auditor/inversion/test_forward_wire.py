"""Every published forward-wire inversion names tokens from open rows, and none from rows that tell nothing.

Tokens of a text are drawn without repetition, so that rows moved by one position name a wrong token everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.attacks.inversion.a1 import RowClassification
from auditor.attacks.inversion.a2 import AugmentedClassification
from auditor.attacks.inversion.actinv import ActInv
from auditor.attacks.inversion.base import NO_GUESS, Recovered
from auditor.attacks.inversion.bisr_forward import BisrForward
from auditor.attacks.inversion.dsi import DualSidedStart
from auditor.attacks.inversion.embedding_recovery import EmbeddingRecovery
from auditor.attacks.inversion.namoe import NoiseAwareMixture
from auditor.attacks.inversion.pia import PromptInversion
from auditor.attacks.inversion.pidi import Pidi
from auditor.attacks.inversion.pmi import PatchedModelInversion
from auditor.attacks.inversion.sip import Sip
from auditor.attacks.inversion.tbs import TokenBasisSelection
from auditor.attacks.inversion.temperature_softmax import TokenSelection
from auditor.attacks.inversion.vmi import VanillaInversion
from auditor.channels import FORWARD_ONLY
from auditor.plan import InversionSettings
from auditor.progress import silent
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, PromptView
from splitwire.backbone import ModelSettings

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = InversionSettings()
LENGTH, KNOWN_TOKENS = 10, 40
CHANCE = 0.15  # 3 of 20 positions: a guess among 40 tokens gets there once in 500 times, and all seeds are fixed

_INVERTER = {"hidden_width": 64, "inverter_learning_rate": 1e-2, "num_epochs": 12, "piece_positions": LENGTH}
_CLASSIFIER = {"hidden_width": 64, "num_epochs": 20, "piece_positions": LENGTH, "batch_rows": 64}
_PATCHES = {"patch_positions": 4, "patch_steps": 10, "joint_steps": 10, "learning_rate": 0.01}

ATTACKS: dict[str, Any] = {
    "actinv": ActInv(num_steps=80, learning_rate=0.05),
    "vmi": VanillaInversion(num_steps=150, learning_rate=0.03),
    "temperature_softmax": TokenSelection(num_steps=120, learning_rate=0.05, temperature=0.2),
    "embedding_recovery": EmbeddingRecovery(num_steps=150, learning_rate=0.03, penalty_weight=1e-3),
    "tbs_unbiased": TokenBasisSelection(num_steps=150, learning_rate=0.02),
    "tbs_singular": TokenBasisSelection(num_steps=120, learning_rate=0.02, basis="singular"),
    "pia": PromptInversion(num_steps=30, largest_entry=0.4),
    "sip": Sip(**_INVERTER),
    "namoe": NoiseAwareMixture(**_INVERTER | {"num_epochs": 6}, num_experts=2, largest_noise_ratio=0.5),
    "bisr_forward": BisrForward(**_INVERTER, num_steps=15, learning_rate=0.01),
    "pmi": PatchedModelInversion(**_INVERTER, **_PATCHES),
    "pmi_random": PatchedModelInversion(
        start="random", patch_positions=0, joint_steps=80, learning_rate=0.05, distance="cosine"
    ),
    "dsi": DualSidedStart(**_INVERTER),
    "pidi": Pidi(**_INVERTER, **_PATCHES),
    "a1": RowClassification(**_CLASSIFIER),
    "a2": AugmentedClassification(**_CLASSIFIER, contexts_per_token=4),
}


@dataclass(frozen=True, eq=False)
class Prompts:
    """Undefended prompts, one whose rows moved by a position and one whose rows are noise; and their tokens."""

    view: PromptView
    tokens: np.ndarray

    def accuracy(self, recovered: list[Recovered], texts: slice) -> float:
        pairs = zip(recovered[texts], self.tokens[texts], strict=True)
        return float(np.mean([guess.tokens[:-1] == ids for guess, ids in pairs]))


OPEN, EMPTY = slice(0, 2), slice(2, 4)


@pytest.fixture(scope="module")
def prompts(tiny_model: Callable[[str], Path]) -> Prompts:
    model = PublicModel(ModelSettings(source=str(tiny_model("llama")), first_layer=1, last_layer=4))
    drawn = np.random.default_rng(9)
    tokens = np.stack([drawn.permutation(KNOWN_TOKENS)[:LENGTH] for _ in range(4)])
    with torch.no_grad():
        rows_BTH = model.head(torch.from_numpy(tokens))
    rows_BTH[2] = rows_BTH[2].roll(1, dims=0)
    rows_BTH[3] = rows_BTH.std() * torch.randn(rows_BTH[3].shape, generator=torch.Generator().manual_seed(6))
    texts = tuple(CapturedText(rows_TH, None, None, None, LENGTH) for rows_TH in rows_BTH)
    auxiliary = tuple(drawn.integers(0, KNOWN_TOKENS, LENGTH) for _ in range(120))
    return Prompts(PromptView(FORWARD_ONLY, texts, model, auxiliary, "fp32", 5), tokens)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_reads_open_rows_and_nothing_from_moved_rows_or_noise(name: str, prompts: Prompts) -> None:
    attack = ATTACKS[name]
    told: list[str] = []
    recovered = attack.run(prompts.view, SETTINGS, lambda label, _done, _of: told.append(label))
    assert prompts.accuracy(recovered, OPEN) >= 0.3
    assert prompts.accuracy(recovered, EMPTY) <= CHANCE
    assert told[-1] == f"{attack.name}: text 4 of 4"
    assert all(guess.tokens.shape == (LENGTH + 1,) and guess.tokens[-1] == NO_GUESS for guess in recovered)


@pytest.mark.parametrize("name", ["actinv", "pia", "sip", "a2"])
def test_the_seed_alone_decides(name: str, prompts: Prompts) -> None:
    short = replace(ATTACKS[name], **({"num_steps": 5} if name in {"actinv", "pia"} else {"num_epochs": 1}))
    before = torch.get_rng_state()
    first, second = short.run(prompts.view, SETTINGS, silent), short.run(prompts.view, SETTINGS, silent)
    assert all(np.array_equal(one.tokens, other.tokens) for one, other in zip(first, second, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
