"""The networks that read released rows: one head a question, and the statistics network of MINE.

A head reads coordinates through a layer of its own, then those and the 22 invariants together. It answers one question
a row: the class of the next token, whether that token is rare, or the hidden row that the encoder was given.

Sources: the in-training adversaries of Privacy Failure in Split-LLM Training; MINE of Belghazi et al. 2018. MINE gives
a lower bound of the information that its network could find in one batch. It is no upper bound and no certificate: low
may mean that the network is too weak.

Shapes: M rows, D width of a released row, H hidden width, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from tln.adversaries.invariants import NUM_INVARIANTS

_EMBEDDING_WIDTH = 64


class Head(nn.Module):
    """Released rows [M, D] and invariants [M, 22] to answers [M, outputs]."""

    def __init__(self, row_width: int, hidden_width: int, outputs: int) -> None:
        super().__init__()
        self.rows = nn.Linear(row_width, hidden_width)
        self.both = nn.Linear(hidden_width + NUM_INVARIANTS, hidden_width)
        self.answer = nn.Linear(hidden_width, outputs)

    def forward(self, rows_MD: torch.Tensor, invariants: torch.Tensor) -> torch.Tensor:
        """Logits of classes, or a hidden row."""
        read = functional.gelu(self.rows(rows_MD))
        read = functional.gelu(self.both(torch.cat((read, invariants), dim=-1)))
        answer: torch.Tensor = self.answer(read)
        return answer


class Mine(nn.Module):
    """Statistics network over a released row and a token class: two hidden layers with GELU, a 64-d embedding."""

    def __init__(self, row_width: int, hidden_width: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, _EMBEDDING_WIDTH)
        self.network = nn.Sequential(
            nn.Linear(row_width + _EMBEDDING_WIDTH, hidden_width),
            nn.GELU(),
            nn.Linear(hidden_width, hidden_width),
            nn.GELU(),
            nn.Linear(hidden_width, 1),
        )

    def forward(self, rows_MD: torch.Tensor, classes_M: torch.Tensor, shuffled_M: torch.Tensor) -> torch.Tensor:
        """The Donsker-Varadhan bound in nats: mean over pairs, minus log mean exp over pairs with shuffled classes."""
        together = self._statistic(rows_MD, classes_M).mean()
        apart = torch.logsumexp(self._statistic(rows_MD, shuffled_M), dim=0) - math.log(len(rows_MD))
        return together - apart

    def _statistic(self, rows_MD: torch.Tensor, classes_M: torch.Tensor) -> torch.Tensor:
        pairs = torch.cat((rows_MD, self.embedding(classes_M)), dim=-1)
        statistic: torch.Tensor = self.network(pairs).squeeze(-1)
        return statistic


def reconstruction_loss(answer_MH: torch.Tensor, hidden_MH: torch.Tensor) -> torch.Tensor:
    """Half the squared error between layer-normed rows, mean over values: 0 same, 1 unrelated, 2 opposite.

    Bounded, so that reversing its gradient cannot pay without end.
    """
    width = hidden_MH.shape[-1:]
    answer, hidden = functional.layer_norm(answer_MH, width), functional.layer_norm(hidden_MH, width)
    return 0.5 * (answer - hidden).square().mean()


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Initial weights from `generator` alone, as torch draws them by default: uniform by fan-in, normal embeddings."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                bound = 1.0 / math.sqrt(part.in_features)
                part.weight.uniform_(-bound, bound, generator=generator)
                part.bias.uniform_(-bound, bound, generator=generator)
            elif isinstance(part, nn.Embedding):
                part.weight.normal_(generator=generator)
