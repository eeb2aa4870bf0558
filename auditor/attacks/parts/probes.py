"""The three classes of token probe. All end in logits over the tokens of the training part.

    coordinate_plus_invariants   LayerNorm(D + 22) -> Linear(max(64, 2D)) -> GELU -> Linear(classes)
    invariant_only               the same on the 22 features, width 44
    invariant_graph              invariant trunk and three residual message layers on the squared unit-Gram graph

The graph has a zero diagonal and rows that sum to one. A message layer is concat [h, Gh, G^2 h, max_j G_ij h_j] ->
LayerNorm -> 4w -> 2w -> GELU -> w, added to h.

Shapes: F frames, R rows, D width, W = 44, C classes.
"""

from __future__ import annotations

import torch
from torch import nn

from auditor.attacks.parts.invariants import NUM_INVARIANTS, unit_rows

INVARIANT_WIDTH = 2 * NUM_INVARIANTS
_NUM_MESSAGE_LAYERS = 3
_PRODUCTS_AT_ONCE = 1 << 20
_EPSILON = 1e-12


class RowProbe(nn.Module):
    """Reads each row by itself: [n, inputs] -> logits [n, C]."""

    def __init__(self, num_inputs: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_inputs)
        self.inner = nn.Linear(num_inputs, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of rows."""
        logits: torch.Tensor = self.head(nn.functional.gelu(self.inner(self.norm(inputs))))
        return logits


class MessageLayer(nn.Module):
    """One residual exchange between the rows of a frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.inner = nn.Linear(4 * width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, hidden_FRW: torch.Tensor, graph_FRR: torch.Tensor) -> torch.Tensor:
        """New hidden rows [F, R, W]."""
        once = graph_FRR @ hidden_FRW
        twice = graph_FRR @ once
        strongest = strongest_message(graph_FRR, hidden_FRW)
        joined = torch.cat([hidden_FRW, once, twice, strongest], dim=-1)
        update: torch.Tensor = self.outer(nn.functional.gelu(self.inner(self.norm(joined))))
        return hidden_FRW + update


def strongest_message(graph_FRR: torch.Tensor, hidden_FRW: torch.Tensor) -> torch.Tensor:
    """max_j G_ij h_jw [F, R, W].

    The winners are found outside autograd and read again inside it: it then keeps [F, R, W] and not [F, R, R, W], and a
    training step of the probe takes about half the time.
    """
    winner_FRW = _winners(graph_FRR, hidden_FRW)
    return graph_FRR.gather(2, winner_FRW) * hidden_FRW.gather(1, winner_FRW)


@torch.no_grad()
def _winners(graph_FRR: torch.Tensor, hidden_FRW: torch.Tensor) -> torch.Tensor:
    """argmax_j G_ij h_jw [F, R, W]: a pooling over j finds it seven times as fast as max does. Products of some frames
    at a time share one buffer: fetching memory from the system anew would take longer than the products.
    """
    num_rows, width = hidden_FRW.shape[1:]
    at_once = max(1, _PRODUCTS_AT_ONCE // (num_rows * num_rows * width))
    buffer = hidden_FRW.new_empty(min(at_once, len(hidden_FRW)), num_rows, num_rows, width)
    winners = []
    for start in range(0, len(hidden_FRW), at_once):
        graph, hidden = graph_FRR[start : start + at_once], hidden_FRW[start : start + at_once]
        product = torch.mul(graph.unsqueeze(-1), hidden.unsqueeze(1), out=buffer[: len(graph)])
        _, place = nn.functional.max_pool2d(product.permute(0, 3, 1, 2), (1, num_rows), return_indices=True)
        winners.append(place.squeeze(-1).transpose(1, 2) % num_rows)
    return torch.cat(winners)


class GraphProbe(nn.Module):
    """Reads whole frames: invariants and rows -> logits [F, R, C]. Padding rows have no edges."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        width = INVARIANT_WIDTH
        self.norm = nn.LayerNorm(NUM_INVARIANTS)
        self.inner = nn.Linear(NUM_INVARIANTS, width)
        self.messages = nn.ModuleList(MessageLayer(width) for _ in range(_NUM_MESSAGE_LAYERS))
        self.head = nn.Linear(width, num_classes)

    def hidden(self, invariants_FRI: torch.Tensor, graph_FRR: torch.Tensor) -> torch.Tensor:
        """Rows before the head [F, R, W]: so that logits are formed only where they are wanted."""
        hidden: torch.Tensor = nn.functional.gelu(self.inner(self.norm(invariants_FRI)))
        for layer in self.messages:
            hidden = layer(hidden, graph_FRR)
        return hidden


def squared_gram_graph(rows_FRD: torch.Tensor) -> torch.Tensor:
    """Squared cosines, diagonal zero, rows summing to one [F, R, R]; a row without neighbours sums to zero."""
    unit = unit_rows(rows_FRD)
    squared = (unit @ unit.transpose(1, 2)) ** 2
    squared.diagonal(dim1=1, dim2=2).zero_()
    return squared / squared.sum(-1, keepdim=True).clamp_min(_EPSILON)
