"""SipIt: one token after another, each accepted when the row that it makes is the row that crossed.

Candidates come in the order of a policy. The gradient-guided one moves a proxy embedding by gradient descent on the
squared distance of the rows and tries the tokens nearest to it that were not tried yet. With `measure_margin` the whole
vocabulary is run at every position as well: half the distance from the row of the true token to the nearest other one
is the margin. Noise whose norm stays below it cannot hide the token, so it is the noise that a defence needs.

Shapes: T positions of one text, K candidates, H hidden width, E embedding width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from transformers import DynamicCache

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.cached_prefix import Prefix
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.public_head import PublicHead, public_head
from auditor.attacks.inversion.parts.wire_distance import WireRows
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class SipIt:
    """Sequential inverse prompts by iterative updates."""

    tolerance: NonNegativeFloat = 1e-3
    """Largest distance of a row from the captured one at which its token is accepted, as a share of the row's norm."""
    learning_rate: PositiveFloat = 0.1
    """Of a step of the proxy embedding, as a share of the mean norm of the embedding table."""
    batch: Count = 64
    """Nearest untried tokens that are run after each step."""
    most_steps: Count = 64
    """Steps at a position; the nearest token that was tried is taken when none was accepted."""
    margin_positions: NonNegativeInt = 0
    """Positions of a text, from its start, at which the whole vocabulary is run to measure the margin."""

    name: ClassVar[str] = "sipit"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = (
        "SipIt (Nikolaou et al., Language Models are Injective and Hence Invertible, 2025, section 3)"
    )

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed; details hold the margin of each measured position."""
        head = public_head(view.model, settings.device)

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            wire = WireRows.read(text.forward.to(head.device), view.wire_dtype)
            prefix = Prefix(head.head)
            tokens, margins, accepted = [], [], []
            for position in range(len(wire)):
                token, distance = self._position(head, prefix, wire, position, generator)
                if position < self.margin_positions:
                    margins.append(_margin(prefix, token, len(head.table)))
                tokens.append(token)
                is_seen = bool(wire.known[position].any())  # a row of zeros lies near every token's
                accepted.append(float(is_seen and distance <= self._largest(wire, position)))
                _, prefix = prefix.extend(torch.tensor([[token]], device=head.device))
                tick((position + 1) / len(wire))
            details = {"head_tokens": prefix.work.tokens} | ({"margins": margins} if margins else {})
            return Guess(torch.tensor(tokens), certainty=torch.tensor([*accepted, 0.0]), details=details)

        return recover_each(self.name, view, progress, recover)

    def _position(
        self, head: PublicHead, prefix: Prefix, wire: WireRows, position: int, generator: torch.Generator
    ) -> tuple[int, float]:
        """The accepted token, or the nearest one that was tried, and its distance."""
        start = int(torch.randint(len(head.table), (1,), generator=generator))
        proxy_E = head.table[start].clone()
        step_size = self.learning_rate * float(head.table.norm(dim=-1).mean())
        tried_V = torch.zeros(len(head.table), dtype=torch.bool, device=head.device)
        nearest, least = start, torch.inf
        for _ in range(self.most_steps):
            distances_V = (head.table - proxy_E).norm(dim=-1).masked_fill(tried_V, torch.inf)
            picked_K = distances_V.topk(min(self.batch, int((~tried_V).sum())), largest=False).indices
            tried_V[picked_K] = True
            rows_KH = prefix.candidates(picked_K[None])[0].float()
            found_K = _distances(wire, position, rows_KH)
            if float(found_K.min()) < least:
                least, nearest = float(found_K.min()), int(picked_K[found_K.argmin()])
                proxy_E = head.table[nearest].clone()
            if least <= self._largest(wire, position) or bool(tried_V.all()):
                break
            gradient_E = _gradient(head, prefix, wire, position, proxy_E)
            proxy_E -= step_size * gradient_E / gradient_E.norm().clamp(min=1e-12)
        return nearest, least

    def _largest(self, wire: WireRows, position: int) -> float:
        return self.tolerance * float(wire.rows[position].norm())


def _distances(wire: WireRows, position: int, rows_KH: torch.Tensor) -> torch.Tensor:
    """Distances [K] of rows beyond the wire's own rounding."""
    squares_K = wire.mean_squares(slice(position, position + 1), rows_KH[None])[0]
    return (squares_K * wire.num_known[position]).sqrt()


def _gradient(head: PublicHead, prefix: Prefix, wire: WireRows, position: int, proxy_E: torch.Tensor) -> torch.Tensor:
    """Gradient [E] of the squared distance of the proxy's row."""
    with torch.enable_grad():
        embedding_E = proxy_E.clone().requires_grad_(True)
        cache = DynamicCache(prefix.past) if prefix.past else DynamicCache()
        scaled_11E = (embedding_E * head.scale).to(head.head.dtype)[None, None]
        row_H = head.head.run(None, None, cache, inputs_embeds=scaled_11E)[0, 0].float()
        loss = ((row_H - wire.rows[position]) * wire.known[position]).square().sum()
        (gradient_E,) = torch.autograd.grad(loss, embedding_E)
    return gradient_E


def _margin(prefix: Prefix, token: int, num_vocabulary: int) -> float:
    """Half the distance from the row of this token to the nearest row of another, over the whole vocabulary."""
    rows_VH = prefix.candidates(torch.arange(num_vocabulary, device=prefix.part.device)[None])[0].float()
    distances_V = (rows_VH - rows_VH[token]).norm(dim=-1)
    distances_V[token] = torch.inf
    return float(distances_V.min()) / 2
