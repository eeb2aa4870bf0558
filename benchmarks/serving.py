"""Eight requests at once through the engine of `tln serve`, against the same eight one after the other.

Real processes and the real engine, without HTTP: greedy texts of fixed length over mutual TLS. Both sides are the same
engine, so the ratio is what batching gives: of head and tail here, and of the middle on the untrusted node.
"""

from __future__ import annotations

import queue
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.measure import Row, alternate
from benchmarks.nodes import Nodes
from splitwire.backbone import load_tokenizer
from tln.serve.active import Ended, Event, Failed
from tln.serve.app import Serving
from tln.serve.prompts import TextRequest
from tln.serve.sampling import Sampling
from tln.serve.server import serving
from tln.serve.settings import ServeSettings

NUM_REQUESTS = 8
_GOAL = 2.5
_SUBJECTS = ("rivers", "bridges", "winter", "bread", "the moon", "old maps", "trains", "honey")


def rows(nodes: Nodes, *, tokens: int, rounds: int) -> Iterator[Row]:
    """The ratio of tokens a second, with what each side reached and whether the answers agree."""
    tokenizer = load_tokenizer(nodes.model)
    requests = [
        TextRequest(
            tuple(tokenizer(f"What people should know about {subject} is that")["input_ids"]),
            tokens,
            (),
            Sampling(temperature=0, num_logprobs=0),
        )
        for subject in _SUBJECTS
    ]
    settings = replace(nodes.direct, serve=ServeSettings(listen="127.0.0.1:0", max_running=NUM_REQUESTS))
    answers: dict[str, list[list[int]]] = {}
    with serving(settings) as parts:
        parts.engine.ends = frozenset()

        def one_after_the_other() -> None:
            answers["alone"] = [_generate(parts, [request])[0] for request in requests]

        def at_once() -> None:
            answers["together"] = _generate(parts, requests)

        alone, together = alternate(one_after_the_other, at_once, rounds=rounds, device=nodes.model.device)
        near_ties = parts.metrics.run.registry.get_sample_value("tln_serve_near_ties_total") or 0.0
    total = NUM_REQUESTS * tokens
    value = statistics.median(alone) / statistics.median(together)
    numbers = {
        "alone_tokens_per_second": total / statistics.median(alone),
        "together_tokens_per_second": total / statistics.median(together),
        "answers_identical": sum(one == other for one, other in zip(*answers.values(), strict=True)),
        "near_ties": near_ties,
    }
    yield Row(
        "8 requests at once, tln serve", "one after the other", value, "ratio", f">= {_GOAL}", value >= _GOAL, numbers
    )


def _generate(parts: Serving, requests: Sequence[TextRequest]) -> list[list[int]]:
    """Tokens of the answers."""
    told: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
    readers = [lambda event, index=index: told.put((index, event)) for index in range(len(requests))]
    parts.engine.submit(requests, readers)
    tokens: list[list[int]] = [[] for _ in requests]
    num_open = len(requests)
    while num_open:
        index, event = told.get()
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Ended):
            num_open -= 1
        else:
            tokens[index] += [scored.choice.token for scored in event.tokens]
    return tokens
