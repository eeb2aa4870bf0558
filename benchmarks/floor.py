"""What two processes cost on this machine: the split's decode steps against the same layers behind a bare socket.

Four contestants take turns in one greedy loop of this module's own, so that none pays for more of `generate` than the
others: the unsplit model; the unsplit model that sleeps at each cut for as long as the other node would compute, the
sleep not counted; head and tail here with the middle behind a socket pair (see socket_peer); the split model over the
wire. All have key-value caches and give the same tokens. What the sleep adds is what a core loses by standing idle.
What the bare socket adds is the floor: no protocol can be below it. What the split adds beyond it is ours.

Each round gives its median step, the prompt left out; the median of the rounds is shown.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.decode import PROMPT
from benchmarks.measure import Row, in_turns
from benchmarks.nodes import Nodes
from benchmarks.socket_peer import receive_rows, running_peer, send_rows
from splitwire.backbone import load_tokenizer, load_whole
from tln.connect import connect
from tln.model import SplitModelForCausalLM

Advance = Callable[[torch.Tensor], torch.Tensor]
"""New token ids [1, T] to the logits [1, 1, V] of the last position; the positions before are in a cache."""


class Pauses:
    """A hook before a layer that sleeps for as long as the work since its last call took: the other node's turn."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Slept so far."""
        self._ended = time.perf_counter()

    def __call__(self, _module: torch.nn.Module, _arguments: object) -> None:
        """Called before the first delegated layer and before the first layer after them."""
        began = time.perf_counter()
        time.sleep(began - self._ended)
        self._ended = time.perf_counter()
        self.seconds += self._ended - began


def rows(nodes: Nodes, *, tokens: int, rounds: int) -> Iterator[Row]:
    """Speed of the split against the bare socket, and what each adds to an unsplit step."""
    prompt = load_tokenizer(nodes.model)(PROMPT, return_tensors="pt")["input_ids"].to(nodes.model.device)
    whole = load_whole(nodes.model)
    with connect(nodes.direct) as connected, running_peer(nodes.model) as link:
        begin: dict[str, Callable[[], Advance]] = {
            "unsplit": partial(unsplit, whole),
            "pausing": partial(unsplit, whole),
            "bare": partial(bare, connected.model, link),
            "split": partial(split, connected.model),
        }
        steps: dict[str, list[float]] = {name: [] for name in begin}
        outputs: dict[str, list[int]] = {}

        def run(name: str) -> None:
            with pausing(whole, connected.model, rests=name == "pausing") as pauses:
                outputs[name], seconds = decode(begin[name](), prompt, tokens, pauses)
            steps[name].append(statistics.median(seconds))

        in_turns([partial(run, name) for name in begin], rounds=rounds, device=nodes.model.device)
    yield from _compared(steps, outputs)


def _compared(steps: dict[str, list[float]], outputs: dict[str, list[int]]) -> Iterator[Row]:
    """Rows from the median step of each round; the first of each warmed up."""
    seconds = {name: statistics.median(values[1:]) for name, values in steps.items()}
    same = float(all(tokens == outputs["unsplit"] for tokens in outputs.values()))
    numbers = {f"{name}_step_ms": 1e3 * value for name, value in seconds.items()} | {"outputs_identical": same}
    speed = seconds["bare"] / seconds["split"]
    yield Row("decode speed, split", "bare socket, two processes", speed, "ratio", numbers=numbers)
    added = {name: 1e3 * (seconds[name] - seconds["unsplit"]) for name in ("pausing", "bare", "split")}
    spread = [1e3 * (over - under) for over, under in zip(steps["bare"][1:], steps["unsplit"][1:], strict=True)]
    numbers = {
        "split_added_ms": added["split"],
        "floor_lowest_round_ms": min(spread),
        "floor_highest_round_ms": max(spread),
    }
    yield Row("latency added by a bare socket", "unsplit step", added["bare"], "ms median", numbers=numbers)
    yield Row("latency added by idling alone", "unsplit step", added["pausing"], "ms median")


@torch.no_grad()
def decode(advance: Advance, prompt: torch.Tensor, tokens: int, pauses: Pauses) -> tuple[list[int], list[float]]:
    """The greedy continuation and the seconds of each step after the prompt, without those of `pauses`."""
    chosen = [advance(prompt)[:, -1].argmax(dim=-1, keepdim=True)]
    seconds = []
    while len(chosen) < tokens:
        began, slept = time.perf_counter(), pauses.seconds
        chosen.append(advance(chosen[-1])[:, -1].argmax(dim=-1, keepdim=True))
        seconds.append(time.perf_counter() - began - (pauses.seconds - slept))
    return [int(token) for token in torch.cat(chosen, dim=1)[0]], seconds


@contextmanager
def pausing(whole: Any, split_model: SplitModelForCausalLM, *, rests: bool) -> Iterator[Pauses]:
    """Has the whole model sleep at both cuts of the split one; without `rests` it does not, and no time is slept."""
    pauses = Pauses()
    first, last = split_model.head.last_layer, split_model.tail.first_layer
    layers = getattr(whole.base_model, split_model.head.family.layers)
    hooks = [layers[number].register_forward_pre_hook(pauses) for number in (first, last)] if rests else []
    try:
        yield pauses
    finally:
        for hook in hooks:
            hook.remove()


def unsplit(whole: Any) -> Advance:
    """The whole model in this process."""
    cache = DynamicCache(config=whole.config)

    def advance(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = whole(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        return logits

    return advance


def split(model: SplitModelForCausalLM) -> Advance:
    """The split model over its open session."""
    cache = model.new_cache()

    def advance(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=ids, cache=cache, logits_to_keep=1).logits
        return logits

    return advance


def bare(model: SplitModelForCausalLM, link: socket.socket) -> Advance:
    """The same head and tail, with the middle behind the socket."""
    head, tail = model.head, model.tail
    head_cache, tail_cache = head.new_cache(), tail.new_cache()
    has_begun = False

    def advance(ids: torch.Tensor) -> torch.Tensor:
        nonlocal has_begun
        hidden = head(ids, cache=head_cache)
        send_rows(link, hidden, begins=not has_begun)
        has_begun = True
        returned, _ = receive_rows(link, head.hidden_width, hidden.dtype)
        return tail.logits(tail(returned.to(hidden.device), cache=tail_cache)[:, -1:])

    return advance
