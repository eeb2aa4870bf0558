"""The median gradient norm of rows on PUBLIC text, before any session is open.

The gradient clip may be a multiple of it. It is computed here alone, with the untrusted node stood in for: by the true
output of the delegated layers where real layers run, and by the identity on the protected latent rows for the gram
stack. Nothing crosses, nothing private is read, so the clip that follows tells nothing.

Shapes: N blocks, T positions, H hidden width, D width of a row that crosses.
"""

from __future__ import annotations

import torch

from splitwire.backbone.parts import HeadModel, TailModel
from splitwire.errors import SettingsError
from tln.connect import PolicyMaker, TrustedParts
from tln.context import StepContext
from tln.gradient_policy import GradientPolicy, build_gradient_policy
from tln.pipeline import FramePipeline
from tln.settings import TlnSettings
from tln.training.corpus import Blocks
from tln.training.losses import LossSettings, private_loss
from tln.training.prepare import Prepared, Texts

_BATCH_BLOCKS = 8
_CALIBRATION_SCOPE = "calibration"


def policy_maker(settings: TlnSettings, texts: Texts, prepared: Prepared) -> PolicyMaker:
    """Calibrates the clip on public text when the settings ask for it."""

    def make(parts: TrustedParts) -> GradientPolicy:
        if settings.gradient.policy == "open" or not settings.gradient.clip_multiple:
            return build_gradient_policy(settings.gradient, parts.keys)
        parts.keys.bind(_CALIBRATION_SCOPE)
        median = median_gradient_norm(
            parts.head,
            parts.tail,
            parts.pipeline,
            texts.public,
            prepared.public_targets,
            settings.loss,
            is_latent=settings.stack.kind == "gram",
        )
        return build_gradient_policy(settings.gradient, parts.keys, median)

    return make


def median_gradient_norm(
    head: HeadModel,
    tail: TailModel,
    pipeline: FramePipeline,
    blocks: Blocks | None,
    targets: torch.Tensor | None,
    loss: LossSettings,
    *,
    is_latent: bool,
) -> float:
    """The median L2 norm of a row's gradient with respect to what the untrusted node would return.

    `targets` [N, T, H] are those of the public blocks. SettingsError without public text.
    """
    if blocks is None or targets is None:
        raise SettingsError(
            "gradient.clip_multiple needs public text to calibrate on",
            remedy="set corpus.public_path and run tln prepare, or set gradient.clip_multiple = 0",
        )
    local = pipeline.local() if is_latent else FramePipeline()
    norms = []
    starts = range(0, len(blocks), _BATCH_BLOCKS)
    for step, start in enumerate(starts, start=1):
        rows = slice(start, start + _BATCH_BLOCKS)
        with torch.no_grad():
            hidden = head(blocks.tokens[rows].to(head.device))
        target = targets[rows].to(head.device)
        context = StepContext(step)
        gradient = local_gradient(tail, local, hidden, target, blocks.labels[rows], loss, context, is_latent=is_latent)
        norms.append(torch.linalg.vector_norm(gradient, dim=-1).flatten())
    return torch.cat(norms).median().item()


def local_gradient(
    tail: TailModel,
    local: FramePipeline,
    hidden_BTH: torch.Tensor,
    target_BTH: torch.Tensor | None,
    labels_BT: torch.Tensor,
    loss: LossSettings,
    context: StepContext,
    *,
    is_latent: bool,
) -> torch.Tensor:
    """The gradient [B, T, D] with respect to what the untrusted node would return, which is stood in for.

    By the identity on the protected rows for the gram stack; for real layers by their true output, or where there is
    none by the rows that go in. `local` is FramePipeline.local(), empty for real layers.
    """
    with torch.no_grad():
        sent = local.protect(hidden_BTH, context).rows
    stand_in = sent if is_latent or target_BTH is None else target_BTH
    returned = stand_in.detach().requires_grad_()
    value = private_loss(tail, local.restore(returned, context), target_BTH, labels_BT, loss).total
    (gradient,) = torch.autograd.grad(value, returned)
    return gradient
