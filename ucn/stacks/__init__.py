"""The computations that a session can ask for, and the one place that opens them.

`open_stack` refuses with HandshakeError what a request may not combine (docs/stacks.md has the table): a gram
stack with a base dtype other than float32, with layers, adapters, a scope, a KV cache or for inference; a transformer
stack without served layers, with gram settings, with a trainable scope or adapters outside training, without a scope
in it. Version, identity and wire dtypes are the handshake's business and have been checked before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from splitwire.backbone import MiddleModel
from splitwire.errors import HandshakeError
from splitwire.frames import torch_dtype, wire_dtype_name
from splitwire.v1 import stack_pb2
from ucn.stacks.adapters import check_lora
from ucn.stacks.base import ForwardCall, Stack, StackLimits, StackState
from ucn.stacks.gram import GramStack
from ucn.stacks.training import check_optimizer
from ucn.stacks.transformer import TransformerStack

__all__ = ["STACK_NAMES", "ForwardCall", "Stack", "StackLimits", "StackState", "open_stack"]

_MAX_GRAM_WIDTH = 1 << 14
_MAX_GRAM_EXPERTS = 64
_MAX_GRAM_LAYERS = 16

_Opener = Callable[[stack_pb2.OpenSessionRequest, MiddleModel | None, torch.device, StackLimits], Stack]


def open_stack(
    request: stack_pb2.OpenSessionRequest,
    base: MiddleModel | None,
    device: torch.device | str,
    dtype: torch.dtype,
    limits: StackLimits | None = None,
) -> Stack:
    """The computation that `request` asks for over the served layers `base`, which compute in `dtype` on `device`.

    Cache limits come from the request; `limits` carries what the node allows beside them.
    """
    opener = _OPENERS.get(request.stack_kind)
    if opener is None:
        raise HandshakeError("stack_kind is not given", remedy=f"ask for one of {', '.join(STACK_NAMES.values())}")
    wanted = torch_dtype(request.compute_dtype)
    if request.stack_kind == stack_pb2.STACK_KIND_TRANSFORMER and wanted != dtype:
        raise HandshakeError(
            f"compute_dtype is {wire_dtype_name(request.compute_dtype)}, the node computes in {dtype}",
            remedy="set the same dtype on both sides",
        )
    limits = dataclasses.replace(
        limits or StackLimits(),
        max_cache_positions=request.max_cache_positions,
        max_cache_sequences=request.max_cache_sequences,
    )
    return opener(request, base, torch.device(device), limits)


def _open_transformer(
    request: stack_pb2.OpenSessionRequest, base: MiddleModel | None, device: torch.device, limits: StackLimits
) -> Stack:
    if base is None:
        raise HandshakeError("this node serves no model layers", remedy="ask for the gram stack, or another node")
    if base.device.type != device.type:
        raise HandshakeError(f"layers are on {base.device}, not on {device}", remedy="load them on the serving device")
    if request.HasField("gram"):
        raise HandshakeError("gram settings with a transformer stack", remedy="leave gram out")
    _check_training(request, base)
    return TransformerStack(request, base, limits)


def _check_training(request: stack_pb2.OpenSessionRequest, base: MiddleModel) -> None:
    scope = request.trainable_scope
    updates = scope in {stack_pb2.TRAINABLE_SCOPE_FULL, stack_pb2.TRAINABLE_SCOPE_LORA}
    if request.mode == stack_pb2.SESSION_MODE_INFERENCE and updates:
        raise HandshakeError(
            "a trainable_scope in an inference session", remedy="leave it out, or open it for training"
        )
    if request.mode == stack_pb2.SESSION_MODE_TRAINING and scope == stack_pb2.TRAINABLE_SCOPE_UNSPECIFIED:
        raise HandshakeError("a training session without trainable_scope", remedy="send NONE, FULL or LORA")
    if request.mode == stack_pb2.SESSION_MODE_UNSPECIFIED:
        raise HandshakeError("mode is not given", remedy="send INFERENCE or TRAINING")
    if request.HasField("lora") != (scope == stack_pb2.TRAINABLE_SCOPE_LORA):
        raise HandshakeError("lora settings and trainable_scope do not agree", remedy="send lora with scope LORA only")
    if request.HasField("lora"):
        check_lora(base, request.lora)
    if updates:
        _require_optimizer(request)


def _open_gram(
    request: stack_pb2.OpenSessionRequest, base: MiddleModel | None, device: torch.device, limits: StackLimits
) -> Stack:
    del base  # the surrogate takes the place of the layers
    if request.mode != stack_pb2.SESSION_MODE_TRAINING:
        raise HandshakeError(
            "a gram stack outside training: it is not causal", remedy="open it for training, or ask for transformer"
        )
    if request.trainable_scope != stack_pb2.TRAINABLE_SCOPE_UNSPECIFIED or request.HasField("lora"):
        raise HandshakeError(
            "trainable_scope or lora with a gram stack", remedy="leave them out: the surrogate trains all it has"
        )
    if limits.max_cache_positions or limits.max_cache_sequences:
        raise HandshakeError("a KV cache with a gram stack: it is not causal", remedy="leave max_cache_* at 0")
    if request.compute_dtype != stack_pb2.WIRE_DTYPE_FP32:
        raise HandshakeError(
            f"compute_dtype is {wire_dtype_name(request.compute_dtype)}", remedy="the gram stack computes in fp32"
        )
    _check_gram(request)
    _require_optimizer(request)
    return GramStack(request, device, limits)


def _check_gram(request: stack_pb2.OpenSessionRequest) -> None:
    if not request.HasField("gram"):
        raise HandshakeError("a gram stack without gram settings", remedy="send gram")
    settings = request.gram
    ranges = {
        "width": (settings.width, _MAX_GRAM_WIDTH),
        "num_experts": (settings.num_experts, _MAX_GRAM_EXPERTS),
        "num_layers": (settings.num_layers, _MAX_GRAM_LAYERS),
    }
    for field, (value, most) in ranges.items():
        if not 1 <= value <= most:
            raise HandshakeError(f"gram.{field} is {value}", remedy=f"send a number from 1 to {most}")


def _require_optimizer(request: stack_pb2.OpenSessionRequest) -> None:
    if not request.HasField("optimizer"):
        raise HandshakeError("a session that updates parameters without optimizer", remedy="send optimizer")
    check_optimizer(request.optimizer)


STACK_NAMES = {stack_pb2.STACK_KIND_TRANSFORMER: "transformer", stack_pb2.STACK_KIND_GRAM: "gram"}

_OPENERS: dict[int, _Opener] = {
    stack_pb2.STACK_KIND_TRANSFORMER: _open_transformer,
    stack_pb2.STACK_KIND_GRAM: _open_gram,
}
