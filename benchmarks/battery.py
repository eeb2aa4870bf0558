"""The nine-arm battery against nine runs one after the other, and against its matrix products alone.

One view of synthetic frames (64 rows of width 64, 2,000 tokens by a Zipf law, a weak code in every row), half of it for
training, as an audit splits it. All sides have the same schedule and take turns in one run.

    battery      the arms of an audit: classes side by side, the restarts of a class together, one thread a class
    sequential   every arm by itself, one after the other: its own invariants and pass over the data, plain autograd on
                 the same probes (probes.py), torch on all cores
    products     the matrix products of the battery and nothing else, side by side as the battery is

CPU seconds stand beside wall seconds: they say what is saved where other work has the cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from auditor.attacks.base import TokenArm
from auditor.attacks.latent_probe import LatentProbe
from auditor.attacks.parts.invariants import NUM_INVARIANTS
from auditor.attacks.parts.probe_data import ProbeData, token_classes
from auditor.attacks.parts.probes import INVARIANT_WIDTH, GraphProbe, RowProbe, squared_gram_graph
from auditor.plan import ProbeSettings
from auditor.progress import Tick, silent
from auditor.scorers.fitting import fits
from auditor.views.token import TokenView
from auditor.workers import one_thread_a_job, run_jobs
from benchmarks.measure import Row, ratio_of_medians, timed

WIDTH, FRAME_ROWS, VOCABULARY = 64, 64, 2000
_CODE = 0.5
_LARGEST_GAP = 0.01
Seconds = dict[str, tuple[list[float], list[float]]]
Truth = np.ndarray[Any, np.dtype[np.int64]]
_Trained = TypeVar("_Trained")


def rows(*, num_rows: int = 65_536, epochs: int = 1, rounds: int = 2, device: str = "cpu") -> Iterator[Row]:
    """Speed against nine runs, then against the products, then the accuracy of both, then what a GPU gains."""
    view, truth = _view(num_rows)
    settings = ProbeSettings(epochs=epochs, device=device)
    shape = {"rows": float(num_rows), "epochs": float(epochs), "classes": float(len(np.unique(view.train_tokens)))}
    arms: list[TokenArm] = []
    models: list[RowProbe | GraphProbe] = []
    sides: dict[str, Callable[[], None]] = {
        "battery": lambda: _into(arms, _battery(view, settings)),
        "sequential": lambda: _into(models, _sequential(view, settings)),
        "products": lambda: _products(view, settings),
    }
    seconds = _turns(sides, rounds, device)
    numbers = {
        f"{name}_{kind}_seconds": statistics.median(values)
        for name, both in seconds.items()
        for kind, values in zip(("wall", "cpu"), both, strict=True)
    }
    goal = 4.0 if torch.device(device).type == "cuda" else 1.5
    wall = [ratio_of_medians(seconds["sequential"][kind], seconds["battery"][kind]) for kind in (0, 1)]
    over = [ratio_of_medians(seconds["battery"][kind], seconds["products"][kind]) for kind in (0, 1)]
    yield Row(
        "nine-arm battery",
        "nine runs one after the other",
        wall[0],
        "times",
        f">= {goal}",
        wall[0] >= goal,
        {**shape, "cpu_ratio": wall[1], **numbers},
    )
    yield Row(
        "nine-arm battery",
        "its matrix products",
        over[0],
        "ratio",
        "<= 1.5",
        over[0] <= 1.5,
        {"cpu_ratio": over[1]},
    )
    data = _data(view, settings)
    left, right = _accuracies(arms, truth), [_accuracy(model, data, truth) for model in models]
    together, alone = float(np.mean(left)), float(np.mean(right))
    spread = float(np.std(np.subtract(left, right))) / len(left) ** 0.5
    yield Row(
        "accuracy of the battery",
        "nine runs one after the other",
        100 * (together - alone),
        "pp",
        "within 1 pp",
        abs(together - alone) <= _LARGEST_GAP,
        {"battery_ratio": together, "sequential_ratio": alone, "standard_error_pp": 100 * spread},
    )
    if not torch.cuda.is_available():
        yield Row("nine-arm battery on a GPU", "nine runs one after the other", 0.0, "no GPU")


def _view(num_rows: int) -> tuple[TokenView, Truth]:
    """Train rows are the first half; the tokens of the others are for whoever scores."""
    generator = np.random.default_rng(1)
    chance = 1 / np.arange(1, VOCABULARY + 1)
    tokens = generator.choice(VOCABULARY, num_rows, p=chance / chance.sum())
    codes = generator.standard_normal((VOCABULARY, WIDTH), dtype=np.float32)
    values = generator.standard_normal((num_rows, WIDTH), dtype=np.float32)
    values += _CODE * codes[tokens]
    offsets, half = np.arange(0, num_rows + 1, FRAME_ROWS), num_rows // 2 // FRAME_ROWS * FRAME_ROWS
    train, score = np.arange(half), np.arange(half, num_rows)
    return TokenView("forward_only", "all", values, offsets, train, tokens[:half], score, 1), tokens[half:]


def _into(kept: list[_Trained], trained: Sequence[_Trained]) -> None:
    kept[:] = trained


def _battery(view: TokenView, settings: ProbeSettings) -> Sequence[TokenArm]:
    """What an audit does: auditor/scorers/fitting.py."""
    arms = LatentProbe().run(replace(view, kept={}), settings, silent)
    with one_thread_a_job():
        run_jobs(fits(arms), lambda _: None)
    return arms


def _accuracies(arms: Sequence[TokenArm], truth: Truth) -> list[float]:
    hits = [
        sum(int((arm.classes[values.argmax(1)] == truth[places]).sum()) for places, values in arm.log_probabilities())
        for arm in arms
    ]
    return [number / len(truth) for number in hits]


def _sequential(view: TokenView, settings: ProbeSettings) -> list[RowProbe | GraphProbe]:
    """Every arm by itself."""
    models = []
    for number, probe in enumerate(probe for probe in settings.probes for _ in range(settings.restarts)):
        data = _data(view, settings)
        torch.manual_seed(number)
        model = _model(probe, len(data.classes)).to(data.rows.device)
        _fit(model, data, settings)
        models.append(model)
    return models


def _data(view: TokenView, settings: ProbeSettings) -> ProbeData:
    """Rows and invariants, computed anew."""
    data = ProbeData(replace(view, kept={}), token_classes(view.train_tokens, 0))
    return data.to(torch.device(settings.device))


def _model(probe: str, num_classes: int) -> RowProbe | GraphProbe:
    if probe == "invariant_graph":
        return GraphProbe(num_classes)
    if probe == "invariant_only":
        return RowProbe(NUM_INVARIANTS, INVARIANT_WIDTH, num_classes)
    return RowProbe(WIDTH + NUM_INVARIANTS, 2 * WIDTH, num_classes)


def _fit(model: RowProbe | GraphProbe, data: ProbeData, settings: ProbeSettings) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)
    unit = FRAME_ROWS if isinstance(model, GraphProbe) else 1
    for _ in range(settings.epochs):
        for batch in torch.split(torch.randperm(len(data.train_rows) // unit), settings.batch_rows // unit):
            picked = _rows_of(batch, unit).to(data.rows.device)
            loss = nn.functional.cross_entropy(
                _logits(model, data, data.train_rows[picked]), data.train_classes[picked]
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def _accuracy(model: RowProbe | GraphProbe, data: ProbeData, truth: Truth) -> float:
    hits = 0
    for part in torch.split(torch.arange(len(data.score_rows)), FRAME_ROWS * 64):
        named = data.classes[_logits(model, data, data.score_rows[part.to(data.rows.device)]).argmax(1).cpu().numpy()]
        hits += int((named == truth[part.numpy()]).sum())
    return hits / len(truth)


def _logits(model: RowProbe | GraphProbe, data: ProbeData, picked: torch.Tensor) -> torch.Tensor:
    """Logits of rows; of whole frames, for the graph probe."""
    invariants = data.invariants[picked]
    if isinstance(model, GraphProbe):
        frames = data.rows[picked].view(-1, FRAME_ROWS, WIDTH)
        hidden = model.hidden(invariants.view(-1, FRAME_ROWS, NUM_INVARIANTS), squared_gram_graph(frames))
        logits: torch.Tensor = model.head(hidden.flatten(0, 1))
        return logits
    with_rows = model.inner.in_features > NUM_INVARIANTS
    return model.forward(torch.cat([data.rows[picked], invariants], dim=1) if with_rows else invariants)


def _rows_of(batch: torch.Tensor, unit: int) -> torch.Tensor:
    return (batch[:, None] * unit + torch.arange(unit)).flatten()


def _products(view: TokenView, settings: ProbeSettings) -> None:
    """The products of every step of every class, side by side."""
    classes = -(-len(np.unique(view.train_tokens)) // 64) * 64
    steps = settings.epochs * -(-len(view.train_rows) // settings.batch_rows)
    width, arms, batch = INVARIANT_WIDTH, settings.restarts, settings.batch_rows
    frames = (batch // FRAME_ROWS, FRAME_ROWS, FRAME_ROWS, arms * width)
    message = [(arms, batch, 4 * width, 2 * width), (arms, batch, 2 * width, width), frames, frames]
    layers = [
        [(arms, batch, WIDTH + NUM_INVARIANTS, 2 * WIDTH), (arms, batch, 2 * WIDTH, classes)],
        [(arms, batch, NUM_INVARIANTS, width), (arms, batch, width, classes)],
        [(arms, batch, NUM_INVARIANTS, width), *3 * message, (arms, batch, width, classes)],
    ]
    with one_thread_a_job():
        run_jobs([_multiply(shapes, steps, settings.device) for shapes in layers], lambda _: None)


def _multiply(shapes: Sequence[tuple[int, int, int, int]], steps: int, device: str) -> Callable[[Tick], None]:
    """Of each layer the output, the gradient of its input and that of its weights."""

    def job(tick: Tick) -> None:
        tick(0.0)
        generator = torch.Generator().manual_seed(0)
        layers = []
        for many, num_rows, inputs, outputs in shapes:
            left = torch.randn(many, num_rows, inputs, generator=generator).to(device)
            right = torch.randn(many, inputs, outputs, generator=generator).to(device)
            results = (left @ right, torch.empty_like(left), torch.empty_like(right))
            layers.append((left, right, *results))
        for _ in range(steps):
            for left, right, out, for_left, for_right in layers:
                torch.bmm(left, right, out=out)
                torch.bmm(out, right.transpose(1, 2), out=for_left)
                torch.bmm(left.transpose(1, 2), out, out=for_right)

    return job


def _turns(sides: Mapping[str, Callable[[], object]], rounds: int, device: str) -> Seconds:
    """Wall and CPU seconds of each side, in turns, in the one order and then in the other."""
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # loads what an optimizer needs, once
    seconds: Seconds = {name: ([], []) for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in names:
            began = time.process_time()
            seconds[name][0].append(timed(sides[name], device))
            seconds[name][1].append(time.process_time() - began)
    return seconds


def main() -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.battery")
    parser.add_argument("--rows", type=int, default=65_536, help="rows of the view, in frames of 64")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    measured = rows(num_rows=arguments.rows, epochs=arguments.epochs, rounds=arguments.rounds, device=arguments.device)
    for row in measured:
        numbers = " ".join(f"{key} {value:.4g}" for key, value in row.numbers.items())
        print(f"{row.name} / {row.against}: {row.value:.3f} {row.unit} ({row.goal}) {numbers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
