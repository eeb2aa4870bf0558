"""Decode steps of eight sessions at once against one after the other, at the untrusted node alone: rows in, rows out.

No head, no tail and no tokens: eight threads send random rows over eight sessions, so the ratio is what the node's
batching gives, with gRPC and TLS. Prompts are sent before the clock starts, and every run goes back to them.
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
from tln.connection import RecoverySettings
from tln.context import StepContext
from tln.crossing import Crossing
from tln.session import open_crossing, session_request
from tln.transport import GrpcTransport

NUM_SESSIONS = 8
_PROMPT_POSITIONS = 40
_CACHE_ID = 1
_GOAL = 2.5


def rows(nodes: Nodes, *, steps: int, rounds: int) -> Iterator[Row]:
    """The ratio of steps a second, and what each side reached."""
    with _sessions(nodes) as crossings, ThreadPoolExecutor(NUM_SESSIONS, "session") as threads:
        numbered, width = list(enumerate(crossings)), identity(nodes.model).hidden_width

        for number, crossing in numbered:
            _send(crossing, number, _PROMPT_POSITIONS + number, width)

        def one_after_the_other() -> None:
            for number, crossing in numbered:
                _decode(crossing, number, steps, width)

        def at_once() -> None:
            for done in [threads.submit(_decode, crossing, number, steps, width) for number, crossing in numbered]:
                done.result()

        alone, together = alternate(one_after_the_other, at_once, rounds=rounds, device=nodes.model.device)
    total = NUM_SESSIONS * steps
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


def _send(crossing: Crossing, seed: int, positions: int, width: int) -> None:
    """One CACHED frame of a sequence, in the session's one cache."""
    sent = torch.randn(1, positions, width, generator=torch.Generator().manual_seed(seed))
    crossing.cross(sent, StepContext(step=crossing.reserve_step(), mode="cached", cache_id=_CACHE_ID))


@torch.no_grad()
def _decode(crossing: Crossing, number: int, steps: int, width: int) -> None:
    """`steps` single rows after the prompt of session `number`, which the cache then is cropped to."""
    for step in range(steps):
        _send(crossing, step, 1, width)
    crossing.cache_crop(_CACHE_ID, _PROMPT_POSITIONS + number)
