"""The check of the factor: a layer is bypassed, ActInv attacks the model without it, and the two are correlated.

Every layer of the first blocks whose output is as wide as its input is replaced in turn by the identity, in the model
that makes the rows and in the attacker's copy alike (section 5.2, "Confirming PAF with a sanity check"). Layers that
change the width cannot be bypassed and are left out. The paper reports correlations of -0.59 to -0.81 between PAF and
the ROUGE-L of the attack.

Shapes: T token ids of a text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from auditor.arrays import Integers
from auditor.attacks.inversion.actinv import ActInv
from auditor.channels import FORWARD_ONLY
from auditor.paf.layers import Layer, measured_layers
from auditor.paf.measure import LayerFactor
from auditor.plan import InversionSettings
from auditor.progress import Progress, silent
from auditor.public_model import PublicModel
from auditor.text_metrics.words import rouge_l
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class Bypassed:
    """What ActInv reads once a layer is gone; `expected` is the factor of that layer."""

    block: int
    name: str
    expected: float
    rouge_l_ratio: float
    accuracy_ratio: float


@dataclass(frozen=True)
class BypassCheck:
    """All of them; what it reads of the whole model; and Pearson's correlation of factor and ROUGE-L.

    The correlation is None for fewer than three layers, or where either does not vary.
    """

    layers: tuple[Bypassed, ...]
    whole_rouge_l_ratio: float
    whole_accuracy_ratio: float
    correlation: float | None
    num_texts: int
    num_steps: int


def check_by_bypass(
    model: PublicModel,
    factors: Sequence[LayerFactor],
    texts: Sequence[Integers],
    tokenizer: Any,
    *,
    steps: int,
    device: str,
    seed: int,
    progress: Progress,
) -> BypassCheck:
    """Attacks the model's head whole, and without each layer that has a factor. The head is left as it was."""
    head = model.head
    blocks = list(getattr(head.body, head.family.layers))
    known = {(factor.block, factor.name): factor.expected for factor in factors}
    layers = [layer for layer in measured_layers(blocks) if (layer.block, layer.name) in known and _keeps_width(layer)]
    attack = ActInv(num_steps=steps)

    def read() -> tuple[float, float]:
        return _read(attack, model, texts, tokenizer, device=device, seed=seed)

    progress("attacking the whole head", 0, len(layers) + 1)
    whole = read()
    found = []
    for number, layer in enumerate(layers, start=1):
        progress(f"without {layer.name} of block {layer.block}", number, len(layers) + 1)
        with _without(blocks[layer.block], layer):
            rouge, accuracy = read()
        found.append(Bypassed(layer.block, layer.name, known[layer.block, layer.name], rouge, accuracy))
    correlation = pearson([part.expected for part in found], [part.rouge_l_ratio for part in found])
    return BypassCheck(tuple(found), whole[0], whole[1], correlation, len(texts), steps)


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs, or where either side does not vary."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _read(
    attack: ActInv, model: PublicModel, texts: Sequence[Integers], tokenizer: Any, *, device: str, seed: int
) -> tuple[float, float]:
    """Mean ROUGE-L and position-wise accuracy of the attack on the rows of the head as it is now."""
    with torch.no_grad():
        rows = [model.head(torch.from_numpy(text)[None].to(model.head.device))[0].float() for text in texts]
    captured = tuple(CapturedText(row, None, None, None, len(row)) for row in rows)
    view = PromptView(FORWARD_ONLY, captured, model, (), "fp32", seed)
    guesses = [
        recovered.tokens[: len(text)]
        for recovered, text in zip(attack.run(view, InversionSettings(device=device), silent), texts, strict=True)
    ]
    rouge = [rouge_l(tokenizer.decode(g), tokenizer.decode(t)) for g, t in zip(guesses, texts, strict=True)]
    accuracy = [float((guess == text).mean()) for guess, text in zip(guesses, texts, strict=True)]
    return float(np.mean(rouge)), float(np.mean(accuracy))


class _SameRows(nn.Module):
    """Stands where a layer was and hands its rows on; attention answers with a pair."""

    def __init__(self, *, is_pair: bool) -> None:
        super().__init__()
        self._is_pair = is_pair

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The first argument, whatever else there is."""
        rows = arguments[0] if arguments else named["hidden_states"]
        return (rows, None) if self._is_pair else rows


@contextlib.contextmanager
def _without(block: nn.Module, layer: Layer) -> Iterator[None]:
    path, _, leaf = layer.name.rpartition(".")
    parent = block.get_submodule(path)
    setattr(parent, leaf, _SameRows(is_pair=layer.kind == "attention"))
    try:
        yield
    finally:
        setattr(parent, leaf, layer.module)


def _keeps_width(layer: Layer) -> bool:
    if layer.kind != "linear":
        return True
    weight: torch.Tensor = layer.module.weight  # type: ignore[assignment]
    return weight.shape[0] == weight.shape[1]
