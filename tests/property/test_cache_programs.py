"""Any order of cached frames, reorders, crops and releases gives what the sequences alone give, computed from scratch.

The slow reference keeps the history of every sequence of every cache and runs the layers over its real rows, uncached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitwire.backbone import MiddleModel, ModelSettings, load_middle
from splitwire.errors import StateError
from splitwire.v1 import stack_pb2
from ucn.stacks import ForwardCall, open_stack

WIDTH = 48
MAX_POSITIONS = 24
MAX_SEQUENCES = 4
WINDOWS = {"llama": None, "gemma3_text": 8}

cache_ids = st.integers(1, 2)
operations = st.one_of(
    st.tuples(st.just("send"), cache_ids, st.integers(1, 6), st.lists(st.integers(1, 6), min_size=4, max_size=4)),
    st.tuples(st.just("send"), cache_ids, st.just(1), st.just([1] * 4)),
    st.tuples(st.just("reorder"), cache_ids, st.lists(st.integers(0, 3), min_size=1, max_size=MAX_SEQUENCES)),
    st.tuples(st.just("crop"), cache_ids, st.floats(0, 1)),
    st.tuples(st.just("release"), cache_ids),
)


@dataclass
class Histories:
    """Per sequence: all rows sent, and which of them were real."""

    rows: list[list[torch.Tensor]]
    real: list[list[bool]] = field(default_factory=list)

    @property
    def num_positions(self) -> int:
        return len(self.real[0])


@cache
def middle(folder: Path) -> MiddleModel:
    return load_middle(ModelSettings(source=str(folder), first_layer=1, last_layer=5))


@pytest.mark.parametrize("family", sorted(WINDOWS))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31), batch=st.integers(1, 3), program=st.lists(operations, min_size=2, max_size=8))
def test_programs(
    tiny_model: Callable[[str], Path], family: str, seed: int, batch: int, program: list[tuple[Any, ...]]
) -> None:
    base, window = middle(tiny_model(family)), WINDOWS[family]
    request = stack_pb2.OpenSessionRequest(
        stack_kind=stack_pb2.STACK_KIND_TRANSFORMER,
        mode=stack_pb2.SESSION_MODE_INFERENCE,
        compute_dtype=stack_pb2.WIRE_DTYPE_FP32,
        max_cache_positions=MAX_POSITIONS,
        max_cache_sequences=MAX_SEQUENCES,
    )
    stack = open_stack(request, base, "cpu", torch.float32)
    generator = torch.Generator().manual_seed(seed)
    caches: dict[int, Histories] = {}
    for step, (name, cache_id, *arguments) in enumerate(program, start=1):
        known = caches.get(cache_id)
        if name == "send":
            num_new, wanted = arguments
            count = len(known.rows) if known else batch
            rows = torch.randn(count, num_new, WIDTH, generator=generator)
            lengths = tuple(num_new if known else min(length, num_new) for length in wanted[:count])
            call = ForwardCall(step, "cached", cache_id, row_lengths=lengths, padding_side="left")
            send(stack, base, caches, call, rows)
        elif known is None:
            continue
        elif name == "release":
            stack.cache_release(cache_id)
            del caches[cache_id]
        elif name == "reorder":
            order = [index % len(known.rows) for index in arguments[0]]
            stack.cache_reorder(cache_id, order)
            caches[cache_id] = Histories(
                [list(known.rows[index]) for index in order], [list(known.real[index]) for index in order]
            )
        else:
            crop(stack, caches, cache_id, round(arguments[0] * known.num_positions), window)


def crop(stack: Any, caches: dict[int, Histories], cache_id: int, keep: int, window: int | None) -> None:
    known = caches[cache_id]
    if window is not None and known.num_positions >= window and 0 < keep < known.num_positions:
        with pytest.raises(StateError, match="sliding window"):
            stack.cache_crop(cache_id, keep)
        return
    stack.cache_crop(cache_id, keep)
    if keep == 0:
        del caches[cache_id]
    else:
        caches[cache_id] = Histories([rows[:keep] for rows in known.rows], [real[:keep] for real in known.real])


def send(stack: Any, base: MiddleModel, caches: dict[int, Histories], call: ForwardCall, rows: torch.Tensor) -> None:
    """Sends a frame, padded on the left if it is the first, and compares every real position of it."""
    known, (count, num_new, _) = caches.get(call.cache_id), rows.shape
    if known and known.num_positions + num_new > MAX_POSITIONS:
        return
    lengths = call.row_lengths
    assert stack.cache_bytes_for(call, rows.shape) > 0
    actual = stack.forward(rows, call)
    known = known or Histories([[] for _ in range(count)], [[] for _ in range(count)])
    caches[call.cache_id] = known
    for index, length in enumerate(lengths):
        known.rows[index] += list(rows[index])
        known.real[index] += [False] * (num_new - length) + [True] * length
        history = [row for row, real in zip(known.rows[index], known.real[index], strict=True) if real]
        with torch.no_grad():
            expected = base(torch.stack(history).unsqueeze(0))[0, -length:]
        torch.testing.assert_close(actual[index, num_new - length :], expected, rtol=1e-4, atol=1e-4)
