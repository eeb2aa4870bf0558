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

from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import Guess, read_each
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import PublicHead, public_head
from auditor.attacks.inversion.parts.public_rows import Standard, rows_of_pieces, standard_of
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


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
    def name(self, rows_TH: torch.Tensor) -> Guess:
        """The likeliest token of each row and its probability."""
        rows_TH = self.standard(rows_TH.to(self.classes.device, torch.float32))
        return Guess.likeliest(self.net.classify(self.net.regress(rows_TH)), self.classes)


@dataclass(frozen=True, eq=False)
class Lessons:
    """The tokens [C] that a network learns to name, ascending, and the chunks (rows [N, H], tokens [N]) of an epoch."""

    classes: torch.Tensor
    epochs: Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]]


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

    def recover(
        self,
        name: str,
        view: PromptView,
        settings: InversionSettings,
        progress: Progress,
        lessons_of: Callable[[PublicHead, torch.Tensor, torch.Tensor], Lessons],
    ) -> list[Recovered]:
        """Tokens of every position that crossed, with their probability; none for the one that follows.

        `lessons_of` makes the lessons of the head, of pieces [N, T] of public text, and of their rows [N, T, H].
        """
        head = public_head(view.model, settings.device)
        pieces_NT = pieces_of(view.auxiliary, self.piece_positions, self.num_pieces, view.seed).to(head.device)
        rows_NTH = rows_of_pieces(head, pieces_NT)
        lessons = lessons_of(head, pieces_NT, rows_NTH)
        classifier = self.fit(
            head,
            standard_of(rows_NTH),
            lessons,
            view.seed,
            lambda done, of: progress(f"{name}: training", done, of),
        )
        return read_each(name, view, progress, classifier.name, fit_seconds=classifier.fit_seconds)

    def fit(
        self,
        head: PublicHead,
        standard: Standard,
        lessons: Lessons,
        seed: int,
        tell: Callable[[int, int], None],
    ) -> Classifier:
        """Trains by the squared error of embeddings plus cross-entropy."""
        classes = lessons.classes
        began = time.perf_counter()
        unit = float(head.table.std())
        embeddings_CH = head.table[classes] / unit
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = ClassifierNet(self.hidden_width, embeddings_CH.cpu()).to(head.device)
        optimizer = torch.optim.Adam(net.parameters(), lr=self.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        for epoch in range(self.num_epochs):
            for raw_NH, tokens_N in lessons.epochs(epoch):
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
