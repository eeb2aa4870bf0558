"""Model completion: the public tail on returned rows says what token comes next.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

import torch

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.parts.each_text import Guess
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import CapturedText
from splitwire.backbone import TailModel


def public_tail(model: PublicModel, device: str) -> TailModel:
    """The model's tail on this device. Its weights are frozen in place: an audit never trains the public model."""
    return model.tail.to(device).requires_grad_(False)


def known_returned(text: CapturedText) -> torch.Tensor:
    """The returned rows [T, H] of this text; NotMeasurableError where that hop was not captured."""
    if text.returned is None:
        raise NotMeasurableError("no RETURN frame was captured: give a bundle that was recorded whole")
    return text.returned


@torch.no_grad()
def completion_logits(model: PublicModel, returned_TH: torch.Tensor, device: str) -> torch.Tensor:
    """Scores [T, V] of the token that follows each position."""
    tail = public_tail(model, device)
    return tail.logits(tail(returned_TH[None].to(tail.device, tail.dtype)))[0].float()


def named_next(probabilities_TV: torch.Tensor) -> Guess:
    """The likeliest next token of every position as the guess for the position after it; the first is not named."""
    best = probabilities_TV.max(-1)
    unnamed, unsure = best.indices.new_full((1,), NO_GUESS), best.values.new_zeros(1)
    tokens_T = torch.cat([unnamed, best.indices[:-1]])
    return Guess(tokens_T, int(best.indices[-1]), torch.cat([unsure, best.values]))
