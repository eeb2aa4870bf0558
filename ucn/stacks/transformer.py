"""The model's own decoder layers [first, last) as a session's computation: inference with KV caches, and training.

Attention masks never cross: they are rebuilt from the number of real positions of each sequence and the padding side,
and position ids count real positions, as transformers' generate does. Where nothing is padded there are neither: the
layers count for themselves and attention takes its fastest path. Layers run in eval mode (no dropout), so a step that
is sent again gives the same bytes.

Refused: rows of another width, lengths that do not fit, more positions than the model was built for, a KV cache in a
session that asked for none, a TRAIN frame outside a training session, too many steps that wait for their gradient.

B sequences, T new positions, H hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from splitwire.backbone import MiddleModel, RaggedInput, why_alone
from splitwire.errors import FrameError, LimitError, StateError
from splitwire.v1 import stack_pb2
from ucn.stacks.adapters import frozen, full_copy, with_lora
from ucn.stacks.base import CachedStep, ForwardCall, PaddingSide, StackLimits
from ucn.stacks.caches import CacheEntry, CacheTable, none_if_full
from ucn.stacks.training import TrainingStack


class TransformerStack(TrainingStack):
    """Implements `Stack` over a shared MiddleModel; what it trains is its own."""

    def __init__(self, request: stack_pb2.OpenSessionRequest, base: MiddleModel, limits: StackLimits) -> None:
        self._base = frozen(base)
        self._is_closed = False
        self._model, parameters = _session_model(request, self._base)
        self._trains = request.mode == stack_pb2.SESSION_MODE_TRAINING
        self._dtype = base.dtype
        self._device = base.device
        self._has_own_dtype = self._model.dtype != base.dtype  # a float32 copy under a half-precision node
        self._caches = CacheTable(base, limits, base.dtype)
        self._has_cache = limits.max_cache_positions > 0 and limits.max_cache_sequences > 0
        self._max_positions = int(base.config.max_position_embeddings)
        super().__init__(parameters, request.optimizer, limits.max_kept_steps, _facts(request, base))

    def forward(self, rows: torch.Tensor, call: ForwardCall) -> torch.Tensor:
        """Rows [B, T, H] after the layers, in the compute dtype."""
        self._check(rows, call)
        rows = rows.to(device=self._device, dtype=self._dtype)
        if call.mode == "cached":
            return self._forward_cached(rows, call)
        mask = padding_mask(call.row_lengths, call.padding_side, rows.shape)
        if call.mode == "evaluate":
            with torch.no_grad():
                return self._run(rows, mask)
        return self._forward_kept(call.step, rows, lambda kept: self._run(kept, mask))

    def cache_bytes_for(self, call: ForwardCall, shape: Sequence[int]) -> int:
        """Bytes of all caches once `call` has run."""
        return self._caches.bytes_after(call, shape)

    def cache_reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        """Selects sequences."""
        self._caches.reorder(cache_id, indices)

    def cache_crop(self, cache_id: int, num_positions: int) -> None:
        """Rolls back."""
        self._caches.crop(cache_id, num_positions)

    def cache_release(self, cache_id: int) -> None:
        """Frees a cache."""
        self._caches.release(cache_id)

    def close(self) -> None:
        """Frees graphs, caches and the session's own parameters; the shared base stays. Nothing runs afterwards."""
        super().close()
        self._caches.clear()
        self._model = self._base
        self._is_closed = True

    @property
    def shared_layers(self) -> MiddleModel | None:
        """The base layers, unless this session computes with layers of its own."""
        shares = self._model is self._base and not self._is_closed
        return self._base if shares and not why_alone(self._base) else None

    def begin_cached(self, rows: torch.Tensor, call: ForwardCall) -> CachedStep:
        """The cache that the call continues, with its mask; nothing has changed until `finish`."""
        self._check(rows, call)
        return self._cached_step(*self._opened(rows, call), call)

    def forward_in_pieces(self, rows: torch.Tensor, call: ForwardCall, size: int) -> Iterator[torch.Tensor]:
        """Rows [B, size, H] after the layers, piece by piece; the last may be shorter."""
        self._check(rows, call)
        rows, entry, mask = self._opened(rows, call)
        for piece in torch.split(rows, size, dim=1):
            num_seen = entry.num_positions + piece.shape[1]
            seen = None if mask is None else mask[:, :num_seen]
            step = self._cached_step(piece, entry, seen, call)
            yield self._run_cached(step, entry, call)

    def _forward_cached(self, rows: torch.Tensor, call: ForwardCall) -> torch.Tensor:
        rows, entry, mask = self._opened(rows, call)
        return self._run_cached(self._cached_step(rows, entry, mask, call), entry, call)

    def _opened(self, rows: torch.Tensor, call: ForwardCall) -> tuple[torch.Tensor, CacheEntry, torch.Tensor | None]:
        """Rows on the device, the cache that they continue, and the mask of all its positions and theirs."""
        entry = self._caches.open(call, rows.shape)
        self._check_positions(call, entry.num_positions + rows.shape[1])
        mask = entry.mask_with(padding_mask(call.row_lengths, call.padding_side, rows.shape), rows.shape[1])
        self._caches.check_mask(call, mask)
        return rows.to(device=self._device, dtype=self._dtype), entry, mask

    def _cached_step(
        self, rows: torch.Tensor, entry: CacheEntry, mask: torch.Tensor | None, call: ForwardCall
    ) -> CachedStep:
        def finish(output: torch.Tensor) -> torch.Tensor:
            self._caches.keep(call.cache_id, entry, mask, rows.shape[1])
            return output.to(self._dtype)

        return CachedStep(RaggedInput(rows, entry.cache, mask), finish)

    def _run_cached(self, step: CachedStep, entry: CacheEntry, call: ForwardCall) -> torch.Tensor:
        try:
            with torch.no_grad():
                output = self._run(step.given.rows, step.given.mask, entry)
        except Exception:
            # some layers have the new positions and some have not
            self._caches.lose(call.cache_id)
            raise
        return step.finish(output)

    def _run(self, rows: torch.Tensor, mask: torch.Tensor | None, entry: CacheEntry | None = None) -> torch.Tensor:
        with self._autocast():
            output: torch.Tensor = self._model(
                rows,
                attention_mask=None if mask is None else mask.to(self._device).long(),
                position_ids=None if mask is None else position_ids(mask, rows.shape[1]).to(self._device),
                cache=None if entry is None else entry.cache,
            )
        return output.to(self._dtype)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._has_own_dtype:
            return torch.autocast(self._device.type, dtype=self._dtype)
        return contextlib.nullcontext()

    def _check(self, rows: torch.Tensor, call: ForwardCall) -> None:
        if self._is_closed:
            raise StateError(f"step {call.step}: the session is closed", remedy="open a new one")
        width = self._model.hidden_width
        if rows.ndim != 3 or rows.shape[-1] != width:
            raise FrameError(
                f"step {call.step}: rows have shape {tuple(rows.shape)}",
                remedy=f"send [sequences, positions, {width}] to this model",
            )
        if call.mode == "train" and not self._trains:
            raise StateError(f"step {call.step}: mode TRAIN in an inference session", remedy="open it in mode TRAINING")
        if call.mode == "cached" and not self._has_cache:
            raise StateError(
                f"step {call.step}: mode CACHED, but the session was opened without a KV cache",
                remedy="open it with max_cache_positions and max_cache_sequences",
            )
        self._check_positions(call, rows.shape[1])

    def _check_positions(self, call: ForwardCall, num_positions: int) -> None:
        if num_positions > self._max_positions:
            raise LimitError(
                f"step {call.step}: {num_positions} positions exceed the model's {self._max_positions}",
                remedy="send shorter sequences",
            )


def padding_mask(lengths: Sequence[int], side: PaddingSide, shape: Sequence[int]) -> torch.Tensor | None:
    """[B, T], True for real positions, of sequences with these lengths; None when all positions are real."""
    num_sequences, num_positions = int(shape[0]), int(shape[1])
    if not lengths:
        return None
    if len(lengths) != num_sequences or any(not 1 <= length <= num_positions for length in lengths):
        raise FrameError(
            f"row_lengths has {len(lengths)} entries for {num_sequences} sequences, or one not in 1 to {num_positions}",
            remedy="send one length for each sequence, or none when all are full",
        )
    if side not in {"left", "right"}:
        raise FrameError("row_lengths without a padding side", remedy="set padding_side to LEFT or RIGHT")
    counts = torch.tensor(list(lengths)).unsqueeze(1)
    positions = torch.arange(num_positions).unsqueeze(0)
    return none_if_full(positions < counts if side == "right" else positions >= num_positions - counts)


def position_ids(mask: torch.Tensor, num_new: int) -> torch.Tensor:
    """Positions [B, T] of the last columns of a mask [B, total]: how many real ones come before; 0 for padding."""
    counted = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 0)
    return counted[:, mask.shape[1] - num_new :]


def _session_model(
    request: stack_pb2.OpenSessionRequest, base: MiddleModel
) -> tuple[MiddleModel, dict[str, torch.nn.Parameter]]:
    if request.trainable_scope == stack_pb2.TRAINABLE_SCOPE_FULL:
        return full_copy(base)
    if request.trainable_scope == stack_pb2.TRAINABLE_SCOPE_LORA:
        return with_lora(base, request.lora, common_start=request.common_start)
    return base, {}


def _facts(request: stack_pb2.OpenSessionRequest, base: MiddleModel) -> dict[str, Any]:
    """What must agree between the session that wrote a checkpoint and the one that resumes from it."""
    return {
        "stack": "transformer",
        "family": base.family.name,
        "first_layer": base.first_layer,
        "last_layer": base.last_layer,
        "fingerprint": request.model.fingerprint,
        "trainable_scope": stack_pb2.TrainableScope.Name(request.trainable_scope),
        "lora_rank": request.lora.rank,
        "lora_alpha": request.lora.alpha,
        "lora_target_modules": ",".join(sorted(request.lora.target_modules)),
    }
