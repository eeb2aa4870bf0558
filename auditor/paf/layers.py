"""The layers of a model that have a factor, and the Jacobian of each at what a text put into it.

Looked at in every block: norms, linear layers and activations, a row of which depends on the same row of the input
alone; and attention as a whole, which mixes rows. Residual connections are left out, as in the paper: their Jacobian is
the identity. Attention's Jacobian is taken of one row, with all other rows held fixed; `sequence_product` gives that of
all rows together.

Shapes: T rows of a text, D width of the output, E width of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_CHUNK_ROWS = 256

Kind = Literal["linear", "rowwise", "attention"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: its block, its name there such as `mlp.act_fn`, and how its rows depend on its input."""

    block: int
    name: str
    kind: Kind
    module: nn.Module


@dataclass(frozen=True, eq=False)
class Call:
    """What went into a layer for one text: the rows [T, E], and the other arguments of the call.

    A norm over heads has a row for every head.
    """

    rows: torch.Tensor
    others: tuple[Any, ...]
    named: dict[str, Any]


def measured_layers(blocks: Sequence[nn.Module]) -> list[Layer]:
    """The layers of these decoder blocks that have a factor, in the order of the modules."""
    found = []
    for number, block in enumerate(blocks):
        for name, module in block.named_modules():
            kind = _kind(name, module)
            if kind is not None:
                found.append(Layer(number, name, kind, module))
    return found


def record_calls(layers: Sequence[Layer], run: Callable[[], object]) -> list[Call]:
    """What goes into each layer while `run` sends one text through the model."""
    calls: dict[int, Call] = {}

    def hook_for(number: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            named = dict(named)
            rows, others = (arguments[0], arguments[1:]) if arguments else (named.pop("hidden_states"), ())
            rows = rows.detach()[0]
            flat = rows if layers[number].kind == "attention" else rows.reshape(-1, rows.shape[-1])
            calls[number] = Call(flat, others, named)

        return hook

    with ExitStack() as stack, torch.no_grad():
        for number, layer in enumerate(layers):
            handle = layer.module.register_forward_pre_hook(hook_for(number), with_kwargs=True)
            stack.callback(handle.remove)
        run()
    return [calls[number] for number in range(len(layers))]


def row_jacobian(layer: Layer, call: Call, row: int) -> torch.Tensor:
    """The Jacobian [D, E] of one output row with respect to the same row of the input."""
    at = call.rows[row]
    if layer.kind == "attention":
        # Row by row: the kernels of attention cannot be batched over cotangents.
        attend = partial(_attended, layer, call, row)
        return torch.autograd.functional.jacobian(attend, at)  # type: ignore[no-untyped-call,no-any-return]
    jacobian: torch.Tensor = torch.func.jacrev(lambda value: layer.module(value[None])[0], chunk_size=_CHUNK_ROWS)(at)
    return jacobian


def sequence_product(layer: Layer, call: Call) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """J J^T of all rows [T, D] with respect to all rows [T, E], as a product with vectors [T * D]; and T * D."""
    shape = _output(layer, call, call.rows).shape

    def function(rows: torch.Tensor) -> torch.Tensor:
        return _output(layer, call, rows)

    def product(vector: torch.Tensor) -> torch.Tensor:
        # The fused kernels of attention have no second derivative; the plain one has.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            rows = call.rows.detach().requires_grad_(True)
            cotangent = vector.to(rows).reshape(shape).requires_grad_(True)
            (pulled,) = torch.autograd.grad(function(rows), rows, cotangent, create_graph=True)
            # The pulled-back vector is linear in the cotangent, so its derivative along itself is J J^T of the vector.
            (image,) = torch.autograd.grad(pulled, cotangent, pulled.detach())
        return image.reshape(-1).double()

    return product, shape.numel()


def _attended(layer: Layer, call: Call, row: int, value: torch.Tensor) -> torch.Tensor:
    """The output row with this value in its place of the input."""
    rows = torch.cat([call.rows[:row], value[None], call.rows[row + 1 :]])
    return _output(layer, call, rows)[row]


def _output(layer: Layer, call: Call, rows: torch.Tensor) -> torch.Tensor:
    named = {name: value for name, value in call.named.items() if name not in ("cache", "past_key_values", "use_cache")}
    output: Any = layer.module(rows[None], *call.others, **named)
    first: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return first[0]


def _kind(name: str, module: nn.Module) -> Kind | None:
    stem = type(module).__name__
    if isinstance(module, nn.Linear) or stem == "Conv1D":
        return "linear"
    if stem.endswith("Attention"):
        return "attention"
    if next(module.children(), None) is not None:
        return None
    is_activation = name.rpartition(".")[2].startswith("act")
    return "rowwise" if stem.endswith("Norm") or is_activation else None
