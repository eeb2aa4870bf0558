"""Labels by the norm of the gradient at the tail cut, without its direction.

A row's gradient is long where the model did not foresee its label. How long each token as a label would make it at the
last hidden state is known from the public lm_head; how that relates to the length at the returned rows is learned from
public text (a straight line between the logarithms). The label is then the likeliest token given the model's own
prediction and that length. It is the baseline of label_inference: what direction adds is the difference of the two.

Shapes: T positions of one text, N pieces of public text, H hidden width, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.completion import public_tail
from auditor.attacks.inversion.parts.each_text import Guess, recover_each
from auditor.attacks.inversion.parts.labels import labels_guess
from auditor.attacks.inversion.parts.pieces import pieces_of, returned_by_public
from auditor.attacks.inversion.parts.tail_gradient import TailGradient
from auditor.channels import GRADIENT_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress, Tick
from auditor.public_model import PublicModel
from auditor.views.prompt import CapturedText, PromptView


@dataclass(frozen=True)
class LabelNorm:
    """Names the label of every row; the first token of a text is nobody's label."""

    pieces: Count = 16
    """Pieces of public text from which the line is learned."""
    piece_tokens: Count = 64
    """Tokens of a piece."""

    name = "label_norm"
    question: Question = "training_text"
    families: tuple[str, ...] = (GRADIENT_ONLY,)
    knowledge = "norms of the gradient, and the returned rows; the public model; public text"
    assumes = Assumes(public_weights=True, auxiliary_text=True)
    paper = "label inference by norm (Li et al. 2022, Label Leakage and Protection in Two-party Split Learning)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order."""
        began = time.perf_counter()
        pieces_NT = pieces_of(view.auxiliary, self.piece_tokens, self.pieces, view.seed)
        line = _fit(_public_gradients(view.model, pieces_NT, settings.device), pieces_NT)
        fit_seconds = time.perf_counter() - began

        def recover(text: CapturedText, generator: torch.Generator, tick: Tick) -> Guess:
            del generator, tick
            gradient = TailGradient(view.model, text, settings.device)
            return labels_guess(_posterior(gradient, line), gradient.observed)

        return recover_each(self.name, view, progress, recover, fit_seconds=fit_seconds)


@dataclass(frozen=True)
class _Line:
    """log length at the returned rows = slope * log length at the last hidden state + a constant, and its scatter."""

    slope: float
    scatter: float


def _public_gradients(model: PublicModel, pieces_NT: torch.Tensor, device: str) -> list[TailGradient]:
    """What training on each piece but for its last token would send."""
    tail, gradients = public_tail(model, device), []
    for piece_T, rows_TH in zip(pieces_NT, returned_by_public(model, pieces_NT[:, :-1], device), strict=True):
        returned_1TH = rows_TH[None].to(tail.dtype).requires_grad_()
        logits_TV = tail.logits(tail(returned_1TH))[0].float()
        loss = torch.nn.functional.cross_entropy(logits_TV, piece_T[1:].to(tail.device))
        (gradient_1TH,) = torch.autograd.grad(loss, returned_1TH)
        text = CapturedText(rows_TH, rows_TH, gradient_1TH[0], None, len(rows_TH))
        gradients.append(TailGradient(model, text, device))
    return gradients


@torch.no_grad()
def _fit(gradients: list[TailGradient], pieces_NT: torch.Tensor) -> _Line:
    """Least squares after the mean of every piece is taken off: its weight in the loss is not known."""
    inputs, outputs = [], []
    for gradient, piece_T in zip(gradients, pieces_NT, strict=True):
        labels_T1 = piece_T[1:, None].to(gradient.normed.device)
        lengths_T = _log_lengths(gradient).gather(1, labels_T1)[:, 0]
        observed_T = _log_observed(gradient)
        inputs.append(lengths_T - lengths_T.mean())
        outputs.append(observed_T - observed_T.mean())
    input_M, output_M = torch.cat(inputs), torch.cat(outputs)
    slope = float((input_M * output_M).sum() / input_M.square().sum().clamp_min(1e-12))
    scatter = float((output_M - slope * input_M).square().mean().sqrt().clamp_min(1e-3))
    return _Line(slope, scatter)


@torch.no_grad()
def _posterior(gradient: TailGradient, line: _Line) -> torch.Tensor:
    """Probability [T, V] of every token given the public tail's prediction and the length of the row's gradient."""
    expected_TV, observed_T = line.slope * _log_lengths(gradient), _log_observed(gradient)
    carries_T = gradient.observed.abs().amax(-1) > 0
    foreseen_T = (gradient.probabilities * expected_TV).sum(-1)
    constant = (observed_T - foreseen_T)[carries_T].mean() if bool(carries_T.any()) else observed_T.mean()
    errors_TV = (observed_T[:, None] - constant - expected_TV) / line.scatter
    posterior_TV: torch.Tensor = (gradient.probabilities.clamp_min(1e-30).log() - errors_TV.square() / 2).softmax(-1)
    return posterior_TV


def _log_lengths(gradient: TailGradient) -> torch.Tensor:
    norms_TV: torch.Tensor = gradient.candidate_norms(gradient.from_scores(gradient.probabilities))
    return norms_TV.clamp_min(1e-6).log()


def _log_observed(gradient: TailGradient) -> torch.Tensor:
    norms_T: torch.Tensor = gradient.observed.norm(dim=-1)
    return norms_T.clamp_min(1e-30).log()
