"""Makes the part of the delegated layers that a training session may change, without touching the shared base.

    NONE   the shared base itself; gradients pass through it
    FULL   a copy of every parameter, kept in float32 whatever the compute dtype
    LORA   PEFT adapters in float32 around the shared base tensors, in a module tree of the session's own

The base is never written: its parameters require no gradient, and a session's tree refers to the same tensors.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from splitwire.backbone import MiddleModel
from splitwire.errors import HandshakeError
from splitwire.v1 import stack_pb2
from ucn.stacks.base import start_seed

_MAX_RANK = 1024
_MAX_ALPHA = 1e6


def frozen(base: MiddleModel) -> MiddleModel:
    """The base itself, read-only from now on."""
    base.requires_grad_(requires_grad=False)
    return base


def full_copy(base: MiddleModel) -> tuple[MiddleModel, dict[str, nn.Parameter]]:
    """A float32 copy, and its parameters by name."""
    own = copy.deepcopy(base)
    own.float()
    own.requires_grad_(requires_grad=True)
    return own, dict(own.body.named_parameters())


def with_lora(
    base: MiddleModel, settings: stack_pb2.LoraSettings, *, common_start: bool = False
) -> tuple[MiddleModel, dict[str, nn.Parameter]]:
    """A module tree over the same base tensors with adapters inserted, and the adapters' parameters by name.

    Adapters start as `start_seed` says, not from the process's generator: outputs equal the base's.
    """
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - takes seconds, and few sessions adapt

    check_lora(base, settings)
    own = shared_copy(base)
    is_conv = any(isinstance(module, Conv1D) for module in base.modules())
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=cast("int", settings.alpha),  # PEFT only ever divides it
        lora_dropout=0.0,
        target_modules=list(settings.target_modules),
        fan_in_fan_out=is_conv,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(start_seed(common=common_start))
        inject_adapter_in_model(config, own.body)
    adapters = {name: parameter for name, parameter in own.body.named_parameters() if parameter.requires_grad}
    for parameter in adapters.values():
        parameter.data = parameter.data.to(device=base.device, dtype=torch.float32)
    return own, adapters


def shared_copy(base: MiddleModel) -> MiddleModel:
    """Another module tree around the very same parameters and buffers."""
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    return copy.deepcopy(base, memo)


def check_lora(base: MiddleModel, settings: stack_pb2.LoraSettings) -> None:
    """HandshakeError names the first field that these layers cannot take."""
    most = min(_MAX_RANK, base.hidden_width)
    if not 1 <= settings.rank <= most:
        raise HandshakeError(f"lora.rank is {settings.rank}", remedy=f"send a rank from 1 to {most}")
    if not 0.0 < settings.alpha <= _MAX_ALPHA:
        raise HandshakeError(
            f"lora.alpha is {settings.alpha}", remedy=f"send a value above 0, at most {_MAX_ALPHA:.0f}"
        )
    names = linear_names(base)
    unknown = sorted(set(settings.target_modules) - names)
    if unknown or not settings.target_modules:
        raise HandshakeError(
            f"lora.target_modules has {len(unknown)} names that these layers lack, of {len(settings.target_modules)}",
            remedy=f"choose from {', '.join(sorted(names))}",
        )


def linear_names(base: MiddleModel) -> set[str]:
    """Last parts of the names of all linear layers, such as q_proj."""
    return {name.rpartition(".")[2] for name, module in base.named_modules() if isinstance(module, nn.Linear | Conv1D)}
