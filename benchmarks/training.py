"""Training steps: LoRA on the delegated layers over the wire against the same step of the unsplit model, and the tap.

Head and tail are frozen on both sides, so that both do the same work: forward, backward to the cut, one AdamW step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from peft import LoraConfig, inject_adapter_in_model

from benchmarks.measure import Row, alternate, ratio_of_medians
from benchmarks.nodes import Nodes
from splitwire.backbone import load_whole
from tln.connect import Connected, connect
from tln.gradient_policy import OpenGradient

_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
_RATE = 1e-4


def rows(nodes: Nodes, *, sequences: int, positions: int, rounds: int) -> Iterator[Row]:
    """Ratio of step times, then what the tap adds to a step."""
    ids = torch.randint(1000, (sequences, positions), generator=torch.Generator().manual_seed(0))
    # Random tokens and the raw gradient: this measures the crossing, not a defence.
    ids = ids.to(nodes.model.device)
    with connect(nodes.direct, mode="training", make_policy=lambda _parts: OpenGradient()) as direct:
        step = _split_step(direct, ids)
        unsplit, split = alternate(_unsplit_step(nodes, ids), step, rounds=rounds, device=nodes.model.device)
        numbers = {"unsplit_seconds": statistics.median(unsplit), "split_seconds": statistics.median(split)}
        value = ratio_of_medians(unsplit, split)
        yield Row("training step, split", "unsplit step", value, "ratio", ">= 0.9", value >= 0.9, numbers)
        with connect(nodes.tapped, mode="training", make_policy=lambda _parts: OpenGradient()) as tapped:
            plain, through = alternate(step, _split_step(tapped, ids), rounds=rounds, device=nodes.model.device)
    numbers = {"direct_seconds": statistics.median(plain), "tapped_seconds": statistics.median(through)}
    value = 100 * (ratio_of_medians(through, plain) - 1)
    yield Row("cost of the tap", "the same step without it", value, "% of a step", "< 3", value < 3, numbers)


def _split_step(connected: Connected, ids: torch.Tensor) -> Callable[[], object]:
    model = connected.model
    model.head.requires_grad_(False)
    model.tail.requires_grad_(False)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.crossing.optimizer_step(_RATE)
        model.crossing.zero_grad()

    return step


def _unsplit_step(nodes: Nodes, ids: torch.Tensor) -> Callable[[], object]:
    model = load_whole(nodes.model)
    model.requires_grad_(False)
    first, last = nodes.model.layer_range(model.config.num_hidden_layers)
    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=_TARGETS,
        layers_to_transform=list(range(first, last)),
        layers_pattern="layers",
    )
    model = inject_adapter_in_model(config, model)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=_RATE)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
