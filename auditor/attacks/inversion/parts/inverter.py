"""An inverter that is trained on public text through the public head: a GRU reads rows and names tokens (SIP).

It can name the tokens that its public text holds; all others were never taught, so they have no output at all. With
several experts, each of them is trained on rows with noise of its own strength, and a gate weighs them at every
position (NaMoE). Both after Chen et al., 2024 (BiSR).

Shapes: N pieces, B pieces of a batch, T positions, H hidden width, D width of the GRU, E experts, C tokens it names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from pydantic import PositiveFloat
from torch import nn

from auditor.attacks.inversion.parts.each_text import Guess
from auditor.attacks.inversion.parts.pieces import pieces_of
from auditor.attacks.inversion.parts.public_head import PublicHead
from auditor.attacks.inversion.parts.public_rows import Standard, rows_of_pieces, standard_of
from auditor.plan import Count
from auditor.progress import Progress
from auditor.views.prompt import PromptView


class InverterNet(nn.Module):
    """Scores [B, T, C] of standardised rows [B, T, H]."""

    def __init__(self, width: int, hidden_width: int, num_classes: int, num_experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.GRU(width, hidden_width, batch_first=True) for _ in range(num_experts))
        self.gate = nn.Sequential(nn.Linear(width, hidden_width), nn.ReLU(), nn.Linear(hidden_width, num_experts))
        self.output = nn.Linear(hidden_width, num_classes)

    def expert_scores(self, number: int, rows_BTH: torch.Tensor) -> torch.Tensor:
        """Scores by one expert alone."""
        scores_BTC: torch.Tensor = self.output(self.experts[number](rows_BTH)[0])
        return scores_BTC

    def forward(self, rows_BTH: torch.Tensor) -> torch.Tensor:
        """Scores by all experts, weighed by the gate."""
        hidden_BTDE = torch.stack([expert(rows_BTH)[0] for expert in self.experts], dim=-1)
        weight_BT1E = self.gate(rows_BTH).softmax(-1)[:, :, None]
        scores_BTC: torch.Tensor = self.output((hidden_BTDE * weight_BT1E).sum(-1))
        return scores_BTC


@dataclass(frozen=True, eq=False)
class Inverter:
    """A trained inverter, the tokens [C] that it names, and how long it took."""

    net: InverterNet
    standard: Standard
    classes: torch.Tensor
    fit_seconds: float

    @torch.no_grad()
    def invert(self, rows_TH: torch.Tensor) -> Guess:
        """The likeliest token of each row and its probability."""
        rows_TH = rows_TH.to(self.classes.device, torch.float32)
        return Guess.likeliest(self.net(self.standard(rows_TH)[None])[0], self.classes)


@dataclass(frozen=True)
class InverterTraining:
    """How an inverter is trained. Attacks that begin with one inherit these parameters."""

    hidden_width: Count = 256
    """Of the GRU."""
    inverter_learning_rate: PositiveFloat = 1e-3
    """Of Adam."""
    batch_pieces: Count = 6
    num_epochs: Count = 20
    num_pieces: Count = 300
    """Pieces of public text at most; the papers take 50 to 300."""
    piece_positions: Count = 64
    """Length of a piece."""

    def fit(
        self, view: PromptView, head: PublicHead, label: str, progress: Progress, noises: tuple[float, ...] = (0.0,)
    ) -> Inverter:
        """Trains one expert for each noise, a share of every channel's spread; with several, then the gate as well."""
        began = time.perf_counter()
        progress(f"{label}: training the inverter", 0, 1)
        pieces_NT = pieces_of(view.auxiliary, self.piece_positions, self.num_pieces, view.seed).to(head.device)
        inverter = self.fit_rows(rows_of_pieces(head, pieces_NT), pieces_NT, view.seed, label, progress, noises)
        return replace(inverter, fit_seconds=time.perf_counter() - began)

    def fit_rows(
        self,
        rows_NTH: torch.Tensor,
        tokens_NT: torch.Tensor,
        seed: int,
        label: str,
        progress: Progress,
        noises: tuple[float, ...] = (0.0,),
    ) -> Inverter:
        """The same on any rows of texts whose tokens are known."""
        began = time.perf_counter()
        standard = standard_of(rows_NTH)
        rows_NTH = standard(rows_NTH)
        classes, answers_NT = torch.unique(tokens_NT, return_inverse=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = InverterNet(rows_NTH.shape[-1], self.hidden_width, len(classes), len(noises)).to(rows_NTH.device)
        self._train(net, rows_NTH, answers_NT, noises, seed, lambda d, n: progress(f"{label}: training", d, n))
        return Inverter(net.eval(), standard, classes, time.perf_counter() - began)

    def _train(
        self,
        net: InverterNet,
        rows_NTH: torch.Tensor,
        answers_NT: torch.Tensor,
        noises: tuple[float, ...],
        seed: int,
        tell: Callable[[int, int], None],
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(net.parameters(), lr=self.inverter_learning_rate)

        def noisy(rows_BTH: torch.Tensor, noise: float) -> torch.Tensor:
            return rows_BTH + noise * torch.randn(rows_BTH.shape, generator=generator).to(rows_BTH.device)

        for epoch in range(self.num_epochs):
            order = torch.randperm(len(rows_NTH), generator=generator)
            for batch in torch.split(order, self.batch_pieces):
                rows_BTH, answers_BT = rows_NTH[batch], answers_NT[batch].flatten()
                loss = torch.zeros((), device=rows_NTH.device)
                for number, noise in enumerate(noises):
                    noisy_BTH = noisy(rows_BTH, noise) if noise else rows_BTH
                    scores = [net.expert_scores(number, noisy_BTH)]
                    if len(noises) > 1:
                        scores.append(net(noisy_BTH))
                    loss = loss + sum(nn.functional.cross_entropy(each.flatten(0, 1), answers_BT) for each in scores)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            tell(epoch + 1, self.num_epochs)
