"""A network that reads each row by itself: to the embedding of its token, and from there to the token.

Shapes: N rows, H hidden width, D width of the network, C tokens it names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat
from torch import nn

from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.attacks.inversion.parts.public_rows import Standard
from auditor.plan import Count


class ClassifierNet(nn.Module):
    """An MLP from standardised rows [N, H] to embeddings, then a linear classifier that begins at the embeddings."""

    def __init__(self, hidden_width: int, embeddings_CH: torch.Tensor) -> None:
        super().__init__()
        num_classes, width = embeddings_CH.shape
        self.regress = nn.Sequential(
            nn.Linear(width, hidden_width),
            nn.ReLU(),
            nn.Linear(hidden_width, hidden_width),
            nn.ReLU(),
            nn.Linear(hidden_width, width),
        )
        self.classify = nn.Linear(width, num_classes)
        with torch.no_grad():
            self.classify.weight.copy_(embeddings_CH)
            self.classify.bias.copy_(-embeddings_CH.square().sum(-1) / 2)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network, the tokens [C] that it names, and how long it took."""

    net: ClassifierNet
    standard: Standard
    classes: torch.Tensor
    fit_seconds: float

    @torch.no_grad()
    def name(self, rows_TH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest token [T] of each row and its probability [T]."""
        rows_TH = self.standard(rows_TH.to(self.classes.device, torch.float32))
        best = self.net.classify(self.net.regress(rows_TH)).softmax(-1).max(-1)
        return self.classes[best.indices], best.values


@dataclass(frozen=True)
class ClassifierTraining:
    """How the network is trained. The paper names its parts; the sizes are ours."""

    hidden_width: Count = 1024
    learning_rate: PositiveFloat = 1e-3
    """Of Adam."""
    batch_rows: Count = 256
    num_epochs: Count = 20
    num_pieces: Count = 1000
    """Pieces of public text at most."""
    piece_positions: Count = 64
    """Length of the pieces that public text is cut into."""

    def fit(
        self,
        head: PublicHead,
        standard: Standard,
        classes: torch.Tensor,
        epochs: Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]],
        seed: int,
        tell: Callable[[int, int], None],
    ) -> Classifier:
        """Trains on chunks (rows [N, H], tokens [N]) of each epoch: squared error of embeddings plus cross-entropy."""
        began = time.perf_counter()
        unit = float(head.table.std())
        embeddings_CH = head.table[classes] / unit
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = ClassifierNet(self.hidden_width, embeddings_CH.cpu()).to(head.device)
        optimizer = torch.optim.Adam(net.parameters(), lr=self.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        for epoch in range(self.num_epochs):
            for raw_NH, tokens_N in epochs(epoch):
                rows_NH, answers_N = standard(raw_NH), torch.searchsorted(classes, tokens_N)
                order = torch.randperm(len(rows_NH), generator=generator)
                for batch in torch.split(order, self.batch_rows):
                    guess_NH = net.regress(rows_NH[batch])
                    loss = nn.functional.mse_loss(guess_NH, embeddings_CH[answers_N[batch]])
                    loss = loss + nn.functional.cross_entropy(net.classify(guess_NH), answers_N[batch])
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            tell(epoch + 1, self.num_epochs)
        return Classifier(net.eval(), standard, classes, time.perf_counter() - began)
