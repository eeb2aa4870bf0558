"""The gradient at the tail cut as a linear function of the labels.

With the returned rows R known, the loss that the trusted node computes depends on the text through its labels alone:
its gradient is c J'(p - q), where J is the Jacobian of the public tail's logits with respect to R, p [T, V] are its
probabilities, q [T, V] the labels (one-hot rows) and c the unknown weight of a row in the loss. J is the same for every
guess of q, so both graphs are built once.

Shapes: T positions of one text, H hidden width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from auditor.attacks.inversion.parts.completion import known_returned, public_tail
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import CapturedText


class TailGradient:
    """What the public tail says of one text, and products with its Jacobian. Nothing here holds a label."""

    def __init__(self, model: PublicModel, text: CapturedText, device: str) -> None:
        tail = public_tail(model, device)
        self.observed = known_gradient(text).to(tail.device, torch.float32)
        """The gradient [T, H] that crossed."""
        self.head_weight = tail.lm_head.weight.detach().float()
        """lm_head [V, H]."""
        self._rows = known_returned(text).to(tail.device, tail.dtype).requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            self._normed = tail(self._rows[None])[0]
            self._cotangent = torch.zeros_like(self._normed, requires_grad=True)
            (self._pulled,) = torch.autograd.grad(self._normed, self._rows, self._cotangent, create_graph=True)
        self.normed = self._normed.detach().float()
        """Normed last hidden states [T, H]."""
        logits_TV = tail.logits(self._normed.detach()).float()
        self.probabilities = logits_TV.softmax(-1)
        """p [T, V]."""
        cap = getattr(tail.config, "final_logit_softcapping", None)
        self._slope = None if cap is None else 1 - (logits_TV / cap).square()

    def from_scores(self, scores_TV: torch.Tensor) -> torch.Tensor:
        """Gradient [T, H] at the normed states of a gradient [T, V] at the logits."""
        return (scores_TV if self._slope is None else scores_TV * self._slope) @ self.head_weight

    def to_scores(self, normed_TH: torch.Tensor) -> torch.Tensor:
        """Change of the logits [T, V] when the normed states change by [T, H]."""
        scores_TV = normed_TH @ self.head_weight.T
        return scores_TV if self._slope is None else scores_TV * self._slope

    def candidate_norms(self, mean_TH: torch.Tensor) -> torch.Tensor:
        """Norms [T, V] at the normed states of what each token as a label would make; `mean_TH` is that of p alone."""
        slope = 1.0 if self._slope is None else self._slope
        squared_TV = slope * slope * self.head_weight.square().sum(-1)
        squared_TV = squared_TV - 2 * self.to_scores(mean_TH) + mean_TH.square().sum(-1, keepdim=True)
        return squared_TV.clamp_min(0).sqrt()

    def pull(self, normed_TH: torch.Tensor) -> torch.Tensor:
        """Gradient [T, H] at the returned rows of a gradient [T, H] at the normed states."""
        (rows_TH,) = torch.autograd.grad(self._normed, self._rows, normed_TH.to(self._normed.dtype), retain_graph=True)
        return rows_TH.float()

    def push(self, rows_TH: torch.Tensor) -> torch.Tensor:
        """Change [T, H] of the normed states when the returned rows change by [T, H]."""
        (normed_TH,) = torch.autograd.grad(
            self._pulled, self._cotangent, rows_TH.to(self._pulled.dtype), retain_graph=True
        )
        return normed_TH.float()

    def of_labels(self, labels_TV: torch.Tensor) -> torch.Tensor:
        """J'(p - q): the gradient [T, H] that these labels would have made, but for its weight; differentiable."""
        product: torch.Tensor = _Pulled.apply(  # type: ignore[no-untyped-call]
            self.from_scores(self.probabilities - labels_TV), self
        )
        return product


class _Pulled(torch.autograd.Function):
    """`pull` with `push` as its own gradient, so that no third graph is built."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, normed_TH: torch.Tensor, gradient: TailGradient
    ) -> torch.Tensor:
        ctx.gradient = gradient  # type: ignore[attr-defined]
        with torch.enable_grad():
            return gradient.pull(normed_TH)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient: TailGradient = ctx.gradient  # type: ignore[attr-defined]
        with torch.enable_grad():
            return gradient.push(outputs[0]), None


def known_gradient(text: CapturedText) -> torch.Tensor:
    """The gradient rows [T, H] of this text; NotMeasurableError where that hop was not captured."""
    if text.gradient is None:
        raise NotMeasurableError("no BACKWARD frame was captured: give a bundle of training")
    return text.gradient
