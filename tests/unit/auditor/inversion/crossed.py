"""Texts that a tiny public model wrote, and what crosses on every hop when they are trained on or answered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from auditor.attacks.inversion.base import Recovered
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, KnownPlaintext, PromptView
from splitwire.backbone import ModelSettings

ALPHABET = 32  # tokens that are drawn blindly, so few that little public text teaches all of them


@dataclass(frozen=True, eq=False)
class Crossed:
    """A view and the tokens [T + 1] of its texts, which no attack is given."""

    view: PromptView
    tokens: list[np.ndarray]

    def accuracy(self, recovered: list[Recovered], *, first: int = 0) -> float:
        """Share of the positions from `first` on at which the guess is the token."""
        pairs = zip(recovered, self.tokens, strict=True)
        return float(np.mean(np.concatenate([guess.tokens[first:] == tokens[first:] for guess, tokens in pairs])))

    def shuffled(self) -> Crossed:
        """Every hop's rows of a text in an order of its own, so that no row belongs to its position."""
        generator = torch.Generator().manual_seed(77)
        texts = []
        for text in self.view.texts:
            order = torch.randperm(len(text.forward), generator=generator)
            texts.append(replace(text, **{name: _taken(getattr(text, name), order) for name in _HOPS}))
        return Crossed(replace(self.view, texts=tuple(texts)), self.tokens)

    def noise(self) -> Crossed:
        """Rows of the same size that say nothing, on every hop."""
        generator = torch.Generator().manual_seed(78)
        texts = tuple(
            replace(
                text,
                **{name: _noise(getattr(text, name), generator) for name in _HOPS if getattr(text, name) is not None},
            )
            for text in self.view.texts
        )
        return Crossed(replace(self.view, texts=texts), self.tokens)


_HOPS = ("forward", "returned", "gradient", "input_gradient")


def crossed(
    settings: ModelSettings,
    *,
    texts: int = 3,
    length: int = 12,
    auxiliary: int = 0,
    known: int = 0,
    foreseen_ratio: float = 0.3,
) -> Crossed:
    """Texts of which this share are the tokens that the model finds likeliest, and the others are drawn blindly.

    Gradients are those of a mean over each text's labels, the last included. The returned rows are the public model's.
    """
    model = PublicModel(settings)
    for part in (model.head, model.middle, model.tail):
        part.requires_grad_(requires_grad=False)
    tokens = _sampled(model, texts + auxiliary + known, length + 1, foreseen_ratio)
    victims, others = tokens[:texts], tokens[texts:]
    plaintext = tuple(KnownPlaintext(ids[:-1], model.head(_batch(ids[:-1]))[0]) for ids in others[auxiliary:])
    view = PromptView(
        family="joint_forward_gradient",
        texts=tuple(_captured(model, ids) for ids in victims),
        model=model,
        auxiliary=tuple(others[:auxiliary]),
        wire_dtype="fp32",
        seed=5,
        known=plaintext,
    )
    return Crossed(view, victims)


def _sampled(model: PublicModel, count: int, length: int, foreseen_ratio: float) -> list[np.ndarray]:
    generator = torch.Generator().manual_seed(3)
    ids_BT = torch.randint(0, ALPHABET, (count, 1), generator=generator)
    with torch.no_grad():
        for _ in range(length - 1):
            logits_BV = model.tail.logits(model.tail(model.middle(model.head(ids_BT)))[:, -1])
            blind_B = torch.randint(0, ALPHABET, (count,), generator=generator)
            foreseen_B = torch.rand(count, generator=generator) < foreseen_ratio
            ids_BT = torch.cat([ids_BT, torch.where(foreseen_B, logits_BV.argmax(-1), blind_B)[:, None]], dim=1)
    return list(ids_BT.numpy().astype(np.int64))


def _captured(model: PublicModel, ids: np.ndarray) -> CapturedText:
    forward_1TH = model.head(_batch(ids[:-1])).requires_grad_()
    returned_1TH = model.middle(forward_1TH)
    logits_TV = model.tail.logits(model.tail(returned_1TH))[0]
    loss = torch.nn.functional.cross_entropy(logits_TV, torch.from_numpy(ids[1:]))
    gradient, input_gradient = torch.autograd.grad(loss, (returned_1TH, forward_1TH))
    return CapturedText(forward_1TH.detach()[0], returned_1TH.detach()[0], gradient[0], input_gradient[0], len(ids) - 1)


def _batch(ids: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(ids)[None]


def _taken(rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return rows[order]


def _noise(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return rows.std() * torch.randn(rows.shape, generator=generator)
