"""Keeps the untrusted node's optimizer in step with transformers' Trainer.

    Trainer(model=split_model, args=arguments, train_dataset=..., callbacks=[RemoteOptimizer(split_model.crossing)])

At each step of the local optimizer the untrusted node takes one too, with the scheduler's learning rate. Gradient
accumulation needs nothing: the untrusted node adds up the gradients of all BACKWARD frames until then.

`max_grad_norm` is the norm over both nodes, as in unsplit training: the untrusted node reports its squared norm,
and both scale by the same factor. A lying node can so change the scale of the local step, as it can with any
gradient it returns. `clip="by_node"` clips each by its own norm instead, and asks for nothing.

Refused: fp16 with a loss scaler, whose scale would cross inside the gradients; gradient checkpointing; more than
one process.
"""

from __future__ import annotations

from typing import Any, Literal

from transformers import TrainerCallback

from splitwire.errors import SettingsError
from tln.crossing import Crossing

_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class RemoteOptimizer(TrainerCallback):
    """Steps the untrusted node's optimizer with the Trainer's own, and has it saved when the Trainer saves."""

    def __init__(
        self,
        crossing: Crossing,
        *,
        clip: Literal["global", "by_node"] = "global",
        checkpoint_label: str = "",
    ) -> None:
        """`checkpoint_label` names the checkpoints on the untrusted node, with the step added; "" saves none there."""
        self._crossing = crossing
        self._clip = clip
        self._checkpoint_label = checkpoint_label
        self._max_norm = 0.0
        self._scale = 1.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the seam
        """Checks the arguments and takes the clipping over from the Trainer, which knows local gradients only."""
        _check_arguments(args)
        if not self._crossing.is_training:
            raise SettingsError("the session is open for inference", remedy="open it for training")
        self._max_norm = float(args.max_grad_norm or 0.0)
        args.max_grad_norm = 0.0
        self._crossing.zero_grad()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Clips local gradients and settles the factor for the remote ones."""
        self._scale = 1.0
        if self._max_norm <= 0:
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        squared = sum(float(gradient.float().square().sum()) for gradient in gradients)
        if self._clip == "global":
            squared += self._crossing.squared_gradient_norm()
        factor = min(1.0, self._max_norm / (squared**0.5 + _EPSILON))
        for gradient in gradients:
            gradient.mul_(factor)
        if self._clip == "global":
            self._scale = factor

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Has the untrusted node take the same step."""
        self._crossing.optimizer_step(
            learning_rate=float(optimizer.param_groups[0]["lr"]),
            gradient_scale=self._scale,
            max_gradient_norm=self._max_norm if self._clip == "by_node" else 0.0,
        )
        self._crossing.zero_grad()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Has the untrusted node save what it trained."""
        if self._checkpoint_label:
            self._crossing.checkpoint(f"{self._checkpoint_label}-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Gives the clipping back."""
        args.max_grad_norm = self._max_norm


def _check_arguments(args: Any) -> None:
    if args.fp16:
        raise SettingsError(
            "TrainingArguments.fp16 scales the loss, and the scale would cross inside the gradients",
            remedy="train in fp32 or bf16",
        )
    if args.world_size > 1:
        raise SettingsError(
            f"TrainingArguments uses {args.world_size} processes; a session has one trusted node",
            remedy="start the trainer as one process",
        )
    if args.gradient_checkpointing:
        raise SettingsError(
            "TrainingArguments.gradient_checkpointing would cross twice for each step", remedy="leave it out"
        )
