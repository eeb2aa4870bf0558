"""A protected step of the gram stack against a step with the same stack and payload and the mechanisms off.

Both sides train a bottleneck of width 64 (no wider than the model) and the same surrogate, on blocks of 32 tokens and
16 frames of 80 rows a message. The protected side has clip, noise, 48 decoys, permutation and rotation, and clips and
noises the gradient.
The other side fills its frames to 80 rows with copies (`Padding`), so that what crosses has the same size, and sends
the gradient as it is. Two losses: the default one, and distillation alone, whose step is several times shorter, so that
the mechanisms weigh more.

Peak memory is that of a process of its own which only takes protected steps, and of the untrusted node that serves it,
which holds no layers of the model: the surrogate is all that it computes.

Refused: nothing; random tokens take the place of text, and the head's own rows that of the targets, since this measures
time and not learning.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.measure import Row, in_turns, ratio_of_medians
from benchmarks.nodes import Nodes, running_gram
from splitwire.backbone import ModelSettings, load_config
from tln.connect import Connected, connect
from tln.context import ProtectedFrame, StepContext
from tln.gradient_policy import GradientSettings, OpenGradient, build_gradient_policy
from tln.mechanisms import Mechanism, Stage
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.pipeline import FramePipeline, FrameSettings
from tln.settings import TlnSettings
from tln.stack_settings import StackSettings
from tln.training.corpus import CorpusSettings
from tln.training.losses import LossSettings, private_loss
from tln.training.utility import restored_rows

FRAMES = 16
BLOCK_TOKENS = 32
FRAME_ROWS = 80
WIDTH = 64
MECHANISMS = ("bottleneck", "clip_noise", "decoys", "permutation", "rotation")
LOSSES = {
    "protected step": LossSettings(),
    "protected step, distillation alone": LossSettings(cross_entropy=0.0),
}
_GOAL = 1.15
_LEARNING_RATE = 1e-4
_MANY = 5
"""A step without the tail is short: so many of them are one measurement."""
_MEMORY_STEPS = 4


class Padding(Mechanism):
    """Fills every frame to `num_rows` rows with copies: the payload of a protected frame, and no defence."""

    name = "padding"
    stage = Stage.MIX

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.num_rows = num_rows

    def protect(self, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
        """[N, T, D] to [N, num_rows, D]; the copies bear no gradient, like decoys."""
        context.stash[self.name] = length = frame.rows.shape[1]
        copies = frame.rows.detach().repeat(1, -(-self.num_rows // length), 1)
        return ProtectedFrame(torch.cat((frame.rows, copies[:, : self.num_rows - length]), dim=1))

    def restore(self, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The first T rows."""
        return rows[:, : context.stash.pop(self.name)]


@dataclass(frozen=True)
class Batch:
    """Token ids [B, T] with next ones, and the frozen head's rows [B, T, H]."""

    tokens: torch.Tensor
    labels: torch.Tensor
    hidden: torch.Tensor

    def context(self, step: int) -> StepContext:
        """A training step over this batch."""
        documents = torch.arange(len(self.tokens))
        return StepContext(step, mode="train", tokens=self.tokens, labels=self.labels, documents=documents)


def rows(folder: Path, model: ModelSettings, *, rounds: int) -> Iterator[Row]:
    """The ratio of step times for each loss, with peak memory beside the first."""
    folder.mkdir(parents=True, exist_ok=True)
    with running_gram(folder, model) as nodes:
        memory = peak_mebibytes(nodes)
        with protected(nodes) as on, padded(nodes) as off:
            for name, loss in LOSSES.items():
                yield _row(name, on, off, loss, rounds, model.device, memory)
                memory = {}


def _row(
    name: str,
    on: Connected,
    off: Connected,
    loss: LossSettings,
    rounds: int,
    device: str,
    memory: dict[str, float],
) -> Row:
    count = 1 if loss.cross_entropy else _MANY
    calls = [times(training_step(connected, loss), count) for connected in (on, off)]
    defended, plain = in_turns(calls, rounds=rounds, device=device)
    value = ratio_of_medians(defended, plain)
    numbers = {
        "protected_step_ms": 1e3 * statistics.median(defended) / count,
        "off_step_ms": 1e3 * statistics.median(plain) / count,
        **memory,
    }
    return Row(name, "mechanisms off, same payload", value, "ratio", f"<= {_GOAL}", value <= _GOAL, numbers)


@contextmanager
def protected(nodes: Nodes) -> Iterator[Connected]:
    """A session with every mechanism on, its decoy pool full."""
    settings = GradientSettings()
    with connect(
        gram_settings(nodes, MECHANISMS),
        mode="training",
        make_policy=lambda parts: build_gradient_policy(settings, parts.keys),
    ) as connected:
        batch = batch_for(connected)
        while not connected.model.pipeline.is_ready:
            connected.model.pipeline.prime(batch.hidden, batch.context(0))
        yield connected


@contextmanager
def padded(nodes: Nodes) -> Iterator[Connected]:
    """A session with the bottleneck alone and frames of the same size."""
    settings = gram_settings(nodes, ("bottleneck",))
    with connect(settings, mode="training", make_policy=lambda _parts: OpenGradient()) as connected:
        encoder = [part for part in connected.model.pipeline.mechanisms if isinstance(part, Mechanism)]
        connected.model.pipeline = FramePipeline([*encoder, Padding(FRAME_ROWS)])
        yield connected


def training_step(connected: Connected, loss: LossSettings) -> Callable[[], object]:
    """One step of both nodes: forward, private loss, backward, an AdamW step on either side."""
    model, batch = connected.model, batch_for(connected)
    model.head.requires_grad_(False)
    model.tail.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.pipeline.parameters(), lr=_LEARNING_RATE)

    def step() -> None:
        context = batch.context(model.crossing.reserve_step())
        restored = restored_rows(model, batch.hidden, context)
        private_loss(model.tail, restored, batch.hidden, batch.labels, loss).total.backward()  # type: ignore[no-untyped-call]
        model.crossing.optimizer_step(_LEARNING_RATE)
        model.crossing.zero_grad()
        optimizer.step()
        optimizer.zero_grad()

    return step


def batch_for(connected: Connected) -> Batch:
    """The same random tokens for every side."""
    head = connected.model.head
    ids = torch.randint(
        connected.model.config.vocab_size, (FRAMES, BLOCK_TOKENS + 1), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        return Batch(ids[:, :-1], ids[:, 1:], head(ids[:, :-1].to(head.device)))


def times(call: Callable[[], object], count: int) -> Callable[[], object]:
    """`count` calls in a row."""

    def repeated() -> None:
        for _ in range(count):
            call()

    return repeated


def peak_mebibytes(nodes: Nodes) -> dict[str, float]:
    """Peak resident memory of a process that takes protected steps of the default loss, and of its untrusted node."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        trusted = pool.submit(_take_steps, nodes).result()
    return {"trusted_peak_mib": trusted, "untrusted_peak_mib": _peak_of(nodes.ucn_process)}


def _take_steps(nodes: Nodes) -> float:
    with protected(nodes) as connected:
        times(training_step(connected, LossSettings()), _MEMORY_STEPS)()
    return _peak_of(os.getpid())


def _peak_of(process: int) -> float:
    """Peak resident memory in MiB of a process since it began; getrusage would count what started it, if larger."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def gram_settings(nodes: Nodes, mechanisms: tuple[str, ...]) -> TlnSettings:
    """A latent frame under these mechanisms, over the gram surrogate of the node."""
    width = min(WIDTH, int(load_config(nodes.model).hidden_size))
    return replace(
        nodes.direct,
        stack=StackSettings(kind="gram"),
        corpus=CorpusSettings(block_tokens=BLOCK_TOKENS),
        frame=FrameSettings(mechanisms=mechanisms, bottleneck=BottleneckSettings(width=width)),
    )
