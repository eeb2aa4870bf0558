"""What a session's computation must offer, whatever stands behind it.

A stack belongs to one session and is called from one thread at a time. Rows come and go as tensors; nothing here
knows the wire. The caller has checked the frame (dtype, sizes, finite values); a stack checks what only it knows:
widths, lengths, caches, kept steps. Its errors are the tree of splitwire.errors, carry steps and sizes, and never a
value.

B sequences or frames, T positions or rows, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from splitwire.backbone import MiddleModel, RaggedInput

_COMMON_SEED = 20261130

Mode = Literal["evaluate", "train", "cached"]
PaddingSide = Literal["left", "right", ""]


@dataclass(frozen=True)
class ForwardCall:
    """What to do with the rows of a FORWARD frame.

    `row_lengths` holds the number of real positions of each sequence in this frame, () when all are full; the padding
    is on `padding_side`. `cache_id` counts in mode "cached" only; an id not seen before starts an empty cache.
    """

    step: int
    mode: Mode
    cache_id: int = 0
    row_lengths: tuple[int, ...] = ()
    padding_side: PaddingSide = ""


@dataclass(frozen=True)
class StackLimits:
    """What one session may hold. 0 positions or sequences: no KV cache was asked for, so none is given.

    `max_pairs` bounds frames x rows x rows of a gram frame, whose memory grows with it.
    """

    max_kept_steps: int = 16
    max_cache_positions: int = 0
    max_cache_sequences: int = 0
    max_pairs: int = 1 << 22


@dataclass(frozen=True)
class StackState:
    """What a checkpoint holds: tensors by name, and plain facts that must agree when they are loaded."""

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


def start_seed(*, common: bool) -> int:
    """Seeds the first trained values: from the operating system, so that nothing of it is known on the other side.

    A common start is public and the same on every node, for nodes that are to answer alike.
    """
    return _COMMON_SEED if common else int.from_bytes(os.urandom(7), "big")


@dataclass(frozen=True)
class CachedStep:
    """A CACHED call that passed every check. `finish` books the outcome of the layers and gives what is returned."""

    given: RaggedInput
    finish: Callable[[torch.Tensor], torch.Tensor]


class Stack(Protocol):
    """The seam between a session and its computation."""

    @property
    def num_trainable_parameters(self) -> int:
        """Number of scalars that an optimizer step changes."""

    def forward(self, rows: torch.Tensor, call: ForwardCall) -> torch.Tensor:
        """Output of rows [B, T, D], of the same shape. Mode "train" keeps the graph until `backward` or `discard`."""

    def backward(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient [B, T, D] with respect to the rows of a kept step, else StateError; parameter gradients add up."""

    def discard(self, step: int) -> None:
        """Drops the graph of a kept step. StateError if it is not kept."""

    def zero_grad(self) -> None:
        """Drops the accumulated parameter gradients."""

    def squared_gradient_norm(self) -> float:
        """Squared L2 norm of the accumulated parameter gradients; 0 when nothing has been accumulated."""

    def optimizer_step(self, learning_rate: float, gradient_scale: float, max_gradient_norm: float) -> float:
        """Scales and clips the gradients in place and updates; gives the squared norm from before."""

    def cache_bytes_for(self, call: ForwardCall, shape: Sequence[int]) -> int:
        """Bytes that all caches of this stack will hold once `call` has run on rows of `shape`; allocates nothing."""

    def cache_reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        """Sequence i of the cache becomes what sequence indices[i] was; their number may change."""

    def cache_crop(self, cache_id: int, num_positions: int) -> None:
        """Forgets all but the first `num_positions` positions."""

    def cache_release(self, cache_id: int) -> None:
        """Frees a cache."""

    def state(self) -> StackState:
        """Trainable parameters and optimizer state, detached copies on the CPU."""

    def load_state(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Takes a `state` of an equal stack. HandshakeError when facts, names, shapes or dtypes differ."""

    def close(self) -> None:
        """Frees everything the session holds."""


@runtime_checkable
class SharedStack(Stack, Protocol):
    """A stack whose CACHED calls can run over layers that other sessions use too, all in one pass."""

    @property
    def shared_layers(self) -> MiddleModel | None:
        """The layers, None when this session's are its own or cannot run caches together."""

    def begin_cached(self, rows: torch.Tensor, call: ForwardCall) -> CachedStep:
        """What a pass over the shared layers needs. Refuses as `forward` does, and changes nothing."""

    def forward_in_pieces(self, rows: torch.Tensor, call: ForwardCall, size: int) -> Iterator[torch.Tensor]:
        """`forward` of a CACHED call, `size` positions at a time; checks all of it before the first."""
