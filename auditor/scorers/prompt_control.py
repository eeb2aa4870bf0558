"""The positive control of inversion attacks: the same attack on rows that the public model itself gives.

Public texts that no attack was given, as long as the captured ones, go through the public head, and where they are
needed through the delegated layers and back. Nothing protects these rows, so an attack that does not read them was not
shown to read anything.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from auditor.arrays import Integers
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, KnownPlaintext, PromptView
from auditor.views.prompt_capture import PromptKey
from auditor.views.text_keys import UNKNOWN, TextKey

NUM_TEXTS = 8
WHAT = "rows that the public model gives for public texts"


def naked_view(view: PromptView, key: PromptKey, *, training: bool) -> tuple[PromptView, list[TextKey]]:
    """A view of naked rows like `view`, and its answers, each a document of its own."""
    lengths = [len(text.forward) for text in view.texts]
    cut = list(itertools.islice(_segments(key.public.held_out, lengths), NUM_TEXTS))
    model, half = view.model, not training
    texts = [naked_text(model, tokens, training=training) for tokens in cut]
    keys = [
        TextKey(tokens, str(number), max(1, len(tokens) // 2) if half else len(tokens) - 1)
        for number, tokens in enumerate(cut)
    ]
    known = tuple(
        KnownPlaintext(tokens[:-1], _forward(model, tokens[:-1]))
        for tokens in itertools.islice(_segments(key.public.auxiliary, lengths), len(view.known))
    )
    return replace(view, texts=tuple(texts), wire_dtype="fp32", known=known), keys


def _segments(pieces: Sequence[Integers], lengths: Sequence[int]) -> Iterator[Integers]:
    """Runs [T + 1] of public text, as long as the captured texts or the piece."""
    wanted = itertools.cycle(lengths)
    for piece in pieces:
        start = 0
        while start < len(piece) - 1:
            length = min(next(wanted), len(piece) - 1) + 1
            if start + length > len(piece):
                break
            yield piece[start : start + length]
            start += length


def naked_text(model: PublicModel, tokens: Integers, *, training: bool) -> CapturedText:
    """What would cross of a text [T + 1] whose last token follows it."""
    num_prompt = max(1, len(tokens) // 2)
    forward = _forward(model, tokens[:-1])
    if not training:
        with torch.no_grad():
            returned = model.middle(_placed(forward, model))[0].float().cpu()
        return CapturedText(forward, returned, None, None, num_prompt)
    rows = _placed(forward, model).requires_grad_()
    middle = model.middle(rows)
    logits = model.tail.logits(model.tail(middle.to(model.tail.device))).float()
    loss = torch.nn.functional.cross_entropy(
        logits[0], torch.from_numpy(tokens[1:]).to(logits.device), ignore_index=UNKNOWN
    )
    gradients = torch.autograd.grad(loss, (middle, rows))
    returned, gradient, inputs = (values.detach()[0].float().cpu() for values in (middle, *gradients))
    return CapturedText(forward, returned, gradient, inputs, len(tokens) - 1)


def _placed(forward_TH: torch.Tensor, model: PublicModel) -> torch.Tensor:
    """The rows [1, T, H] where the delegated layers are, in their dtype."""
    return forward_TH[None].to(model.middle.device, model.middle.dtype)


@torch.no_grad()
def _forward(model: PublicModel, tokens: Integers) -> torch.Tensor:
    """Rows [T, H] of the public head."""
    head = model.head
    rows: torch.Tensor = head(torch.from_numpy(tokens)[None].to(head.device))[0]
    return rows.float().cpu()
