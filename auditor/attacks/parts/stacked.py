"""Probes of one class in one set of tensors: one pass over the data trains all arms together.

A stacked layer holds the parameters of the same layer of every arm, and its products are batched; arms share inputs,
graph and batches, and nothing else: an arm's gradient depends on no other arm. `write_back` gives the trained values
to the single probes that the stack was made of.

The head has no autograd: `head_gradients` turns logits into probabilities less the one-hot labels, which is the
gradient of cross-entropy, and multiplies it out at once. Classes are padded to a multiple of 64, for products of odd
width take up to twice as long; a padded class has bias -inf, and so no probability and no gradient.

Shapes: A arms, N rows, I inputs, O outputs, F frames, R rows a frame, W width, C classes with padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from auditor.attacks.parts.probes import GraphProbe, MessageLayer, RowProbe, strongest_message

_CLASS_MULTIPLE = 64
_LOGITS_AT_ONCE = 1 << 22


class StackedLinear(nn.Module):
    """The same linear layer of every arm, its outputs padded to a multiple."""

    def __init__(self, layers: Sequence[nn.Linear], multiple: int = 1) -> None:
        super().__init__()
        self._layers = tuple(layers)
        self.num_outputs = layers[0].out_features
        padding = -self.num_outputs % multiple
        weight = torch.stack([layer.weight.detach().T for layer in layers])
        bias = torch.stack([layer.bias.detach()[None] for layer in layers])
        self.weight_AIO = nn.Parameter(nn.functional.pad(weight, (0, padding)).contiguous())
        self.bias_A1O = nn.Parameter(nn.functional.pad(bias, (0, padding), value=-torch.inf))

    def forward(self, inputs_NAI: torch.Tensor) -> torch.Tensor:
        """Outputs [N, A, O]."""
        return torch.baddbmm(self.bias_A1O, inputs_NAI.transpose(0, 1), self.weight_AIO).transpose(0, 1)

    @torch.no_grad()
    def write_back(self) -> None:
        """Gives the parameters to the layers of the single arms."""
        for arm, layer in enumerate(self._layers):
            layer.weight.copy_(self.weight_AIO[arm, :, : self.num_outputs].T)
            layer.bias.copy_(self.bias_A1O[arm, 0, : self.num_outputs])


class StackedNorm(nn.Module):
    """The same layer norm of every arm."""

    def __init__(self, norms: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self._norms = tuple(norms)
        self.scale_AI = nn.Parameter(torch.stack([norm.weight.detach() for norm in norms]))
        self.shift_AI = nn.Parameter(torch.stack([norm.bias.detach() for norm in norms]))

    def forward(self, inputs_NAI: torch.Tensor) -> torch.Tensor:
        """Outputs [N, A, I]; inputs [N, 1, I] are those of every arm."""
        normalised = nn.functional.layer_norm(inputs_NAI, inputs_NAI.shape[-1:], eps=self._norms[0].eps)
        return torch.addcmul(self.shift_AI, normalised, self.scale_AI)

    @torch.no_grad()
    def write_back(self) -> None:
        """Gives the parameters to the norms of the single arms."""
        for arm, norm in enumerate(self._norms):
            norm.weight.copy_(self.scale_AI[arm])
            norm.bias.copy_(self.shift_AI[arm])


class StackedRows(nn.Module):
    """Row probes (probes.RowProbe) of equal shape."""

    def __init__(self, probes: Sequence[RowProbe]) -> None:
        super().__init__()
        self.norm = StackedNorm([probe.norm for probe in probes])
        self.inner = StackedLinear([probe.inner for probe in probes])
        self.head = StackedLinear([probe.head for probe in probes], _CLASS_MULTIPLE)

    def hidden(self, inputs_NI: torch.Tensor) -> torch.Tensor:
        """Rows before the head [N, A, W]."""
        return nn.functional.gelu(self.inner(self.norm(inputs_NI.unsqueeze(1))))


class StackedMessages(nn.Module):
    """The same message layer of every arm."""

    def __init__(self, layers: Sequence[MessageLayer]) -> None:
        super().__init__()
        self.norm = StackedNorm([layer.norm for layer in layers])
        self.inner = StackedLinear([layer.inner for layer in layers])
        self.outer = StackedLinear([layer.outer for layer in layers])

    def forward(self, hidden_NAW: torch.Tensor, graph_FRR: torch.Tensor) -> torch.Tensor:
        """New hidden rows [N, A, W], where N = F R. The frames' products take the arms side by side as one width."""
        own = hidden_NAW.reshape(*graph_FRR.shape[:2], -1)
        once = graph_FRR @ own
        parts = (own, once, graph_FRR @ once, strongest_message(graph_FRR, own))
        joined = torch.cat([part.reshape(hidden_NAW.shape) for part in parts], dim=-1)
        update: torch.Tensor = self.outer(nn.functional.gelu(self.inner(self.norm(joined))))
        return hidden_NAW + update


class StackedGraphs(nn.Module):
    """Graph probes (probes.GraphProbe) of equal shape."""

    def __init__(self, probes: Sequence[GraphProbe]) -> None:
        super().__init__()
        self.norm = StackedNorm([probe.norm for probe in probes])
        self.inner = StackedLinear([probe.inner for probe in probes])
        layers = zip(*(probe.messages for probe in probes), strict=True)
        self.messages = nn.ModuleList(StackedMessages([_message(layer) for layer in same]) for same in layers)
        self.head = StackedLinear([probe.head for probe in probes], _CLASS_MULTIPLE)

    def hidden(self, invariants_FRI: torch.Tensor, graph_FRR: torch.Tensor) -> torch.Tensor:
        """Rows before the head [F R, A, W]."""
        inputs = invariants_FRI.flatten(0, 1).unsqueeze(1)
        hidden: torch.Tensor = nn.functional.gelu(self.inner(self.norm(inputs)))
        for layer in self.messages:
            hidden = layer(hidden, graph_FRR)
        return hidden


Stack = StackedRows | StackedGraphs


def train_step(
    stack: Stack, optimizer: torch.optim.Optimizer, hidden_NAW: torch.Tensor, classes_N: torch.Tensor
) -> None:
    """One update of every arm on the mean cross-entropy of these rows."""
    optimizer.zero_grad(set_to_none=True)
    gradient = head_gradients(stack.head, hidden_NAW.detach(), classes_N)
    hidden_NAW.backward(gradient)  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def head_gradients(head: StackedLinear, hidden_NAW: torch.Tensor, classes_N: torch.Tensor) -> torch.Tensor:
    """Gradients of every arm's mean cross-entropy: sets those of the head, gives that of the hidden rows [N, A, W]."""
    weight, bias, share = head.weight_AIO, head.bias_A1O, 1 / len(classes_N)
    hidden_ANW, classes_N1 = hidden_NAW.transpose(0, 1), classes_N[:, None]
    gradient, for_weight, for_bias = torch.empty_like(hidden_ANW), torch.zeros_like(weight), torch.zeros_like(bias)
    at_once = max(1, _LOGITS_AT_ONCE // (weight.shape[0] * weight.shape[2]))
    for start in range(0, len(classes_N), at_once):
        rows = slice(start, start + at_once)
        hidden, classes = hidden_ANW[:, rows], classes_N1[rows].expand(len(weight), -1, -1)
        excess = torch.baddbmm(bias, hidden, weight)
        torch.softmax(excess, dim=-1, out=excess)
        excess.scatter_add_(2, classes, torch.full_like(classes, -1, dtype=excess.dtype))
        gradient[:, rows] = torch.bmm(excess, weight.transpose(1, 2)).mul_(share)
        for_weight.baddbmm_(hidden.transpose(1, 2), excess, alpha=share)
        for_bias.add_(excess.sum(1, keepdim=True), alpha=share)
    weight.grad, bias.grad = for_weight, for_bias
    return gradient.transpose(0, 1)


def write_back(stack: Stack) -> None:
    """Gives the trained parameters to the probes that the stack was made of."""
    for module in stack.modules():
        if isinstance(module, StackedLinear | StackedNorm):
            module.write_back()


def _message(layer: nn.Module) -> MessageLayer:
    if not isinstance(layer, MessageLayer):
        raise TypeError(f"{type(layer).__name__} is no message layer")
    return layer
