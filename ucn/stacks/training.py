"""What stacks share when they train: kept graphs, accumulated gradients, AdamW, and checkpoints of both.

Weight decay goes to matrices only, not to biases, norms and scalars, which is what transformers' Trainer does too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from splitwire.errors import FrameError, HandshakeError, LimitError, StateError
from splitwire.v1 import stack_pb2
from ucn.stacks.base import StackState

_MAX_RATE, _MAX_SCALE = 1e6, 1e30
"""Far beyond use, and within what torch multiplies a float32 tensor by; a larger factor is an error inside it."""
_CLIP_EPSILON = 1e-6
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class KeptGraphs:
    """Inputs and outputs of TRAIN steps whose gradient has not come yet, a bounded number of them."""

    def __init__(self, max_kept_steps: int) -> None:
        self._max_kept_steps = max_kept_steps
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def check_room(self, step: int) -> None:
        """LimitError when no other step can be kept, StateError when this one is; before anything is computed."""
        if step in self._kept:
            raise StateError(f"step {step} is already kept", remedy="use a new step for each training frame")
        if len(self._kept) >= self._max_kept_steps:
            raise LimitError(
                f"{len(self._kept)} training steps wait for their gradient, the limit",
                remedy="send BACKWARD or DiscardStep for earlier steps first",
            )

    def keep(self, step: int, rows: torch.Tensor, output: torch.Tensor) -> None:
        """Holds a step's graph."""
        self._kept[step] = (rows, output)

    def backward(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        """Runs the step's graph backwards and forgets it; the gradient with respect to its input rows."""
        if step not in self._kept:
            raise StateError(
                f"step {step} has no kept graph", remedy="send BACKWARD once, after a FORWARD frame in mode TRAIN"
            )
        rows, output = self._kept[step]
        if gradient.shape != output.shape:
            raise FrameError(
                f"step {step}: gradient has shape {tuple(gradient.shape)}, rows had {tuple(output.shape)}",
                remedy="send the gradient of the returned rows",
            )
        del self._kept[step]
        torch.autograd.backward(output, gradient.to(device=output.device, dtype=output.dtype))
        return torch.zeros_like(rows) if rows.grad is None else rows.grad

    def discard(self, step: int) -> None:
        """Forgets a step."""
        if self._kept.pop(step, None) is None:
            raise StateError(f"step {step} has no kept graph", remedy="discard a step that was sent in mode TRAIN")

    def clear(self) -> None:
        """Forgets all steps."""
        self._kept.clear()


class Trainable:
    """Named parameters with their gradients and AdamW; the learning rate comes with each step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: stack_pb2.OptimizerSettings) -> None:
        self._parameters = dict(parameters)
        self._optimizer = _adamw(self._parameters, settings) if self._parameters else None

    @property
    def num_parameters(self) -> int:
        """Number of scalars."""
        return sum(parameter.numel() for parameter in self._parameters.values())

    def zero_grad(self) -> None:
        """Drops gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def squared_gradient_norm(self) -> float:
        """Over all parameters, summed in float64."""
        gradients = self._gradients()
        if not gradients:
            return 0.0
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64).square().cpu() for gradient in gradients]
        return float(torch.stack(norms).sum())

    def step(self, learning_rate: float, gradient_scale: float, max_gradient_norm: float) -> float:
        """Scales, clips and applies the gradients; their squared norm from before. Nothing is changed on an error."""
        _check_step_values(learning_rate, gradient_scale, max_gradient_norm)
        if self._optimizer is None:
            raise StateError("the session trains no parameter", remedy="open it with trainable_scope FULL or LORA")
        if not self._gradients():
            raise StateError("no gradient to apply", remedy="send BACKWARD before OptimizerStep")
        squared_norm = self.squared_gradient_norm()
        if not math.isfinite(squared_norm):
            raise StateError(
                "accumulated gradients are not finite", remedy="send ZeroGrad and use a smaller loss scale or step"
            )
        self._scale(gradient_scale * _clip_ratio(math.sqrt(squared_norm) * gradient_scale, max_gradient_norm))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return squared_norm

    def state(self, facts: Mapping[str, Any]) -> StackState:
        """Parameters as `parameter.<name>` and moments as `optimizer.<moment>.<name>`, copied to the CPU."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            tensors[f"parameter.{name}"] = _copied(parameter)
            moments = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
            tensors |= {f"optimizer.{key}.{name}": _copied(moments[key]) for key in _MOMENTS if key in moments}
        return StackState(tensors, dict(facts))

    def load_state(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Takes a state whose facts equal `own`; checks everything before it changes anything."""
        differing = sorted(key for key in {*facts, *own} if facts.get(key) != own.get(key))
        if differing:
            raise HandshakeError(
                f"checkpoint differs in {', '.join(differing)}", remedy="resume with the settings it was written with"
            )
        self._check_tensors(tensors)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
                self._load_moments(name, parameter, tensors)

    def clear(self) -> None:
        """Frees parameters and optimizer state."""
        self.zero_grad()
        self._parameters.clear()
        self._optimizer = None

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]

    def _scale(self, ratio: float) -> None:
        if ratio != 1.0:
            for gradient in self._gradients():
                gradient.mul_(ratio)

    def _check_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        wanted = {f"parameter.{name}": parameter for name, parameter in self._parameters.items()}
        moments = {f"optimizer.{key}.{name}" for key in _MOMENTS for name in self._parameters}
        names = {name for name in tensors if name not in moments}
        if names != set(wanted):
            raise HandshakeError(
                f"checkpoint has {len(names)} parameters, the session {len(wanted)}, or their names differ",
                remedy="resume with the settings it was written with",
            )
        for key, tensor in tensors.items():
            name = key.split(".", 2)[2] if key in moments else key.removeprefix("parameter.")
            shape = () if key.startswith("optimizer.step.") else self._parameters[name].shape
            if tensor.shape != shape or not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
                raise HandshakeError(
                    f"checkpoint tensor {key} has another shape or dtype, or is not finite",
                    remedy="resume from a checkpoint of an equal session",
                )

    def _load_moments(self, name: str, parameter: nn.Parameter, tensors: Mapping[str, torch.Tensor]) -> None:
        keys = {key: f"optimizer.{key}.{name}" for key in _MOMENTS}
        if self._optimizer is None or not all(stored in tensors for stored in keys.values()):
            return
        self._optimizer.state[parameter] = {
            # AdamW counts steps on the host, whatever the device of the parameter
            key: tensors[stored].clone() if key == "step" else tensors[stored].to(parameter)
            for key, stored in keys.items()
        }


def check_optimizer(settings: stack_pb2.OptimizerSettings) -> None:
    """HandshakeError names the first field out of its range."""
    ranges = {
        "beta1": (settings.beta1, 0.0 <= settings.beta1 < 1.0, "in [0, 1)"),
        "beta2": (settings.beta2, 0.0 <= settings.beta2 < 1.0, "in [0, 1)"),
        "epsilon": (settings.epsilon, 0.0 < settings.epsilon <= 1.0, "above 0, at most 1"),
        "weight_decay": (
            settings.weight_decay,
            0.0 <= settings.weight_decay <= _MAX_RATE,
            f"from 0 to {_MAX_RATE:.0f}",
        ),
    }
    for field, (value, is_good, wanted) in ranges.items():
        if not is_good:
            raise HandshakeError(f"optimizer.{field} is {value}", remedy=f"send a value {wanted}")


def _check_step_values(learning_rate: float, gradient_scale: float, max_gradient_norm: float) -> None:
    if not 0.0 <= learning_rate <= _MAX_RATE:
        raise StateError(f"learning_rate is {learning_rate}", remedy=f"send a value from 0 to {_MAX_RATE:.0f}")
    if not 0.0 < gradient_scale <= _MAX_SCALE:
        raise StateError(
            f"gradient_scale is {gradient_scale}", remedy=f"send a value above 0, at most {_MAX_SCALE:.0g}"
        )
    if not (math.isfinite(max_gradient_norm) and max_gradient_norm >= 0.0):
        raise StateError(f"max_gradient_norm is {max_gradient_norm}", remedy="send 0 for none, or a positive norm")


def _clip_ratio(norm: float, max_norm: float) -> float:
    """What torch.nn.utils.clip_grad_norm_ multiplies by."""
    return min(1.0, max_norm / (norm + _CLIP_EPSILON)) if max_norm > 0.0 else 1.0


def _adamw(parameters: Mapping[str, nn.Parameter], settings: stack_pb2.OptimizerSettings) -> torch.optim.AdamW:
    matrices = [parameter for parameter in parameters.values() if parameter.ndim > 1]
    others = [parameter for parameter in parameters.values() if parameter.ndim <= 1]
    decays = ((matrices, settings.weight_decay), (others, 0.0))
    groups = [{"params": group, "weight_decay": decay} for group, decay in decays if group]
    return torch.optim.AdamW(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


class TrainingStack:
    """The part of `Stack` that is the same for everything trained: a stack sets the attributes and adds `forward`."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        optimizer: stack_pb2.OptimizerSettings,
        max_kept_steps: int,
        facts: Mapping[str, Any],
    ) -> None:
        """`facts` must be equal for a checkpoint to be taken."""
        self._trainable = Trainable(dict(parameters), optimizer)
        self._kept = KeptGraphs(max_kept_steps)
        self._facts = dict(facts)

    @property
    def num_trainable_parameters(self) -> int:
        """Scalars that an optimizer step changes."""
        return self._trainable.num_parameters

    def backward(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient with respect to the rows of `step`, in their shape."""
        return self._kept.backward(step, gradient)

    def discard(self, step: int) -> None:
        """Drops a kept step."""
        self._kept.discard(step)

    def zero_grad(self) -> None:
        """Drops accumulated gradients."""
        self._trainable.zero_grad()

    def squared_gradient_norm(self) -> float:
        """Of the session's own parameters."""
        return self._trainable.squared_gradient_norm()

    def optimizer_step(self, learning_rate: float, gradient_scale: float, max_gradient_norm: float) -> float:
        """AdamW over the session's own parameters; their squared gradient norm before scaling."""
        return self._trainable.step(learning_rate, gradient_scale, max_gradient_norm)

    def state(self) -> StackState:
        """The session's own parameters and AdamW moments."""
        return self._trainable.state(self._facts)

    def load_state(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Takes the state of an equal session."""
        self._trainable.load_state(tensors, facts, self._facts)

    def close(self) -> None:
        """Frees graphs and the session's own parameters."""
        self._kept.clear()
        self._trainable.clear()

    def _forward_kept(self, step: int, rows: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Runs a TRAIN step and keeps its graph until BACKWARD comes."""
        self._kept.check_room(step)
        rows = rows.detach().requires_grad_()
        output = run(rows)
        self._kept.keep(step, rows, output)
        return output.detach()
