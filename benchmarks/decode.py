"""Greedy decoding: the split model over the wire against the unsplit model's `generate`, same process, same threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measure import Row, alternate, ratio_of_medians
from benchmarks.nodes import Nodes
from splitwire.backbone import load_tokenizer, load_whole
from splitwire.bundles import WireRecord
from tln.connect import connect

PROMPT = "The people who keep records of others owe them"


class StepTimer:
    """A streamer that notes when each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _value: torch.Tensor) -> None:
        """Called by generate for the prompt and for each token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to flush."""

    def steps(self) -> list[float]:
        """Seconds of each decode step, the prefill left out."""
        return [after - before for before, after in zip(self.times[1:], self.times[2:], strict=False)]


def rows(nodes: Nodes, *, tokens: int, rounds: int) -> Iterator[Row]:
    """Tokens per second, added latency a step, and bytes a decoded token."""
    whole = load_whole(nodes.model)
    prompt = load_tokenizer(nodes.model)(PROMPT, return_tensors="pt")["input_ids"].to(nodes.model.device)
    steps: dict[str, list[float]] = {"unsplit": [], "split": []}
    outputs: dict[str, torch.Tensor] = {}

    def generate(name: str, model: Any) -> None:
        timer = StepTimer()
        outputs[name] = model.generate(
            prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, streamer=timer, pad_token_id=0
        )
        steps[name] += timer.steps()

    with connect(nodes.direct) as connected:
        unsplit, split = alternate(
            lambda: generate("unsplit", whole),
            lambda: generate("split", connected.model),
            rounds=rounds,
            device=nodes.model.device,
        )
        wire_bytes = _bytes_a_token(connected.model, prompt)
    same = bool(torch.equal(outputs["unsplit"], outputs["split"]))
    numbers = {
        "unsplit_tokens_per_second": tokens / statistics.median(unsplit),
        "split_tokens_per_second": tokens / statistics.median(split),
        "outputs_identical": float(same),
    }
    value = ratio_of_medians(unsplit, split)
    yield Row("decode speed, split", "unsplit generate", value, "ratio", ">= 0.95", value >= 0.95, numbers)
    added = 1e3 * (statistics.median(steps["split"]) - statistics.median(steps["unsplit"]))
    medians = {f"{name}_step_ms": 1e3 * statistics.median(values) for name, values in steps.items()}
    yield Row("decode latency added a step", "unsplit step", added, "ms median", "< 1.5", added < 1.5, medians)
    raw = 2 * whole.config.hidden_size * torch.finfo(whole.dtype).bits // 8
    value = wire_bytes / raw
    yield Row("decode bytes on the wire", "raw rows", value, "ratio", numbers={"bytes": wire_bytes, "raw": raw})


def _bytes_a_token(model: Any, prompt: torch.Tensor) -> float:
    """Median bytes of messages, both directions, of a decode step."""
    sizes: list[int] = []

    def observe(record: WireRecord) -> None:
        sizes.append(len(record.message))

    model.crossing.transport.observers.append(observe)
    model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)
    model.crossing.transport.observers.remove(observe)
    exchanges = [out + back for out, back in zip(sizes[::2], sizes[1::2], strict=False)]
    return statistics.median(exchanges[1:])
