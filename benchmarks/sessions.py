"""Decode steps of eight sessions at once against one after the other, at the untrusted node alone: rows in, rows out.

No head, no tail and no tokens: eight threads send random rows over eight sessions, so the ratio is what the node's
batching gives, with gRPC and TLS. After a prefill each session decodes the same number of steps on both sides.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from benchmarks.measure import Row, alternate, ratio_of_medians
from benchmarks.nodes import Nodes
from splitwire.backbone import identity
from tln.context import StepContext
from tln.crossing import Crossing
from tln.recovery import RecoverySettings
from tln.session import open_crossing, session_request
from tln.transport import GrpcTransport

NUM_SESSIONS = 8
_PROMPT_POSITIONS = 40
_GOAL = 2.5


def rows(nodes: Nodes, *, steps: int, rounds: int) -> Iterator[Row]:
    """The ratio of steps a second, and what each side reached."""
    with _sessions(nodes) as crossings, ThreadPoolExecutor(NUM_SESSIONS, "session") as threads:
        numbered, width = list(enumerate(crossings)), identity(nodes.model).hidden_width

        def one_after_the_other() -> None:
            for number, crossing in numbered:
                _decode(crossing, number, steps, width)

        def at_once() -> None:
            for done in [threads.submit(_decode, crossing, number, steps, width) for number, crossing in numbered]:
                done.result()

        alone, together = alternate(one_after_the_other, at_once, rounds=rounds, device=nodes.model.device)
    total = NUM_SESSIONS * (steps + 1)
    value = ratio_of_medians(alone, together)
    numbers = {
        "alone_steps_per_second": total / statistics.median(alone),
        "together_steps_per_second": total / statistics.median(together),
    }
    yield Row("8 sessions at once, ucn", "one after the other", value, "ratio", f">= {_GOAL}", value >= _GOAL, numbers)


@contextlib.contextmanager
def _sessions(nodes: Nodes) -> Iterator[list[Crossing]]:
    settings, model = nodes.direct, identity(nodes.model)
    stack = replace(settings.stack, max_cache_sequences=1)
    with contextlib.ExitStack() as ends:
        crossings = []
        for _ in range(NUM_SESSIONS):
            transport = GrpcTransport(settings.connection)
            ends.callback(transport.close)
            request = session_request(stack, model, mode="inference", compute_dtype=nodes.model.dtype)
            crossings.append(open_crossing(transport, request, recovery=RecoverySettings(attempts=0)))
        yield crossings


@torch.no_grad()
def _decode(crossing: Crossing, seed: int, steps: int, width: int) -> None:
    """A prefill and `steps` single rows in a cache of its own, which is released at the end."""
    generator = torch.Generator().manual_seed(seed)
    cache_id = crossing.new_cache_id()
    for positions in (_PROMPT_POSITIONS + seed, *[1] * steps):
        sent = torch.randn(1, positions, width, generator=generator)
        crossing.cross(sent, StepContext(step=crossing.reserve_step(), mode="cached", cache_id=cache_id))
    crossing.cache_release(cache_id)
