"""Private fine-tuning: the loop.

    head -> protect -> crossing -> restore -> (distillation) -> tail -> cross-entropy

Many frames cross in one message a step. Each node takes one AdamW step, on the gradients of that step alone. The order
of blocks, the initial private weights and who is held out come from the run key, which is fresh for every run.

Refused: a frame before every mechanism is ready; the decoy pool is filled first, with rows that do not cross.

Shapes: B frames or sequences a step, T positions, H hidden width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from tln.context import StepContext
from tln.corpus import Blocks
from tln.keys import RunKey
from tln.losses import LossSettings, private_loss
from tln.model import SplitModelForCausalLM
from tln.progress import Progress
from tln.train_settings import TrainSettings
from tln.utility import restored_rows

ORDER_SCOPE = "order"


@dataclass(frozen=True)
class TrainingText:
    """Blocks [N, T], the numbers of those that train, what the frozen head makes of them, and their targets.

    `hidden` and `targets` are [N, T, H]; targets are None without distillation.
    """

    blocks: Blocks
    members: torch.Tensor
    hidden: torch.Tensor
    targets: torch.Tensor | None


@dataclass
class History:
    """One entry a step: loss a frame and its parts, in nats or squared error. TLN only."""

    loss: list[float] = field(default_factory=list)
    distillation: list[float] = field(default_factory=list)
    cross_entropy: list[float] = field(default_factory=list)
    seconds: float = 0.0


class Trainer:
    """Trains the private parts of a split model here, and has the untrusted node train its own.

    `time_step` is told how many seconds each step took.
    """

    def __init__(
        self,
        model: SplitModelForCausalLM,
        settings: TrainSettings,
        loss: LossSettings,
        text: TrainingText,
        run_key: RunKey,
        time_step: Callable[[float], object] = lambda _seconds: None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.loss = loss
        self.text = text
        self._run_key = run_key
        self._time_step = time_step
        freeze_parts(model, settings)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def prime(self, progress: Progress) -> None:
        """Fills the decoy pool with rows of training text. Nothing crosses."""
        pipeline = self.model.pipeline
        batches = self._batches("prime")
        if not pipeline.is_ready:
            progress.begin("decoy pool", 0)
        while not pipeline.is_ready:
            chosen = next(batches)
            pipeline.prime(self._hidden(chosen).detach(), self._context(chosen, step=0))
            progress.advance(len(chosen))

    def train(self, progress: Progress) -> History:
        """Takes all steps; the loss of each is in the history."""
        history, started = History(), time.monotonic()
        progress.begin("training", self.settings.steps)
        batches = self._batches("train")
        for step in range(self.settings.steps):
            began = time.monotonic()
            self._step(next(batches), learning_rate_factor(step, self.settings.warmup_steps), history)
            self._time_step(time.monotonic() - began)
            progress.advance(1, f"loss {history.loss[-1]:.4f}")
        history.seconds = time.monotonic() - started
        return history

    def _step(self, chosen: torch.Tensor, factor: float, history: History) -> None:
        context = self._context(chosen, step=self.model.crossing.reserve_step())
        restored = restored_rows(self.model, self._hidden(chosen), context)
        target = None if self.text.targets is None else self.text.targets[chosen].to(restored.device)
        value = private_loss(self.model.tail, restored, target, self.text.blocks.labels[chosen], self.loss)
        value.total.backward()  # type: ignore[no-untyped-call]
        self._update(factor)
        history.loss.append(value.total.item() / len(chosen))
        history.distillation.append(value.distillation)
        history.cross_entropy.append(value.cross_entropy)

    def _update(self, factor: float) -> None:
        settings, crossing = self.settings, self.model.crossing
        remote_rate = settings.remote_learning_rate or settings.learning_rate
        crossing.optimizer_step(remote_rate * factor, max_gradient_norm=settings.max_gradient_norm)
        crossing.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * factor
        if settings.max_gradient_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, settings.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _hidden(self, chosen: torch.Tensor) -> torch.Tensor:
        head = self.model.head
        if any(parameter.requires_grad for parameter in head.parameters()):
            hidden: torch.Tensor = head(self.text.blocks.tokens[chosen].to(head.device))
            return hidden
        return self.text.hidden[chosen].to(head.device)

    def _context(self, chosen: torch.Tensor, step: int) -> StepContext:
        blocks = self.text.blocks
        return StepContext(
            step,
            mode="train",
            tokens=blocks.tokens[chosen],
            labels=blocks.labels[chosen],
            documents=blocks.documents[chosen],
        )

    def _batches(self, purpose: str) -> Iterator[torch.Tensor]:
        """Block numbers of one step after the other; every epoch in a fresh order, batches never smaller."""
        size, left = self.settings.frames_per_step, torch.empty(0, dtype=torch.int64)
        epoch = 0
        while True:
            while len(left) < size:
                stream = self._run_key.stream(ORDER_SCOPE, epoch, purpose)
                order = torch.from_numpy(stream.permutations(1, len(self.text.members))[0])
                left, epoch = torch.cat((left, self.text.members[order])), epoch + 1
            yield left[:size]
            left = left[size:]


def freeze_parts(model: SplitModelForCausalLM, settings: TrainSettings) -> None:
    """Only the pipeline is trained, and head and tail where the settings say so. Tied weights train if either does."""
    model.head.requires_grad_(False)
    model.tail.requires_grad_(False)
    if settings.train_head:
        model.head.requires_grad_(True)
    if settings.train_tail:
        model.tail.requires_grad_(True)
    model.train(mode=False)


def learning_rate_factor(step: int, warmup_steps: int) -> float:
    """Rises linearly over the first `warmup_steps` steps to 1, then stays."""
    return 1.0 if warmup_steps == 0 else min(1.0, (step + 1) / warmup_steps)


def mean_of_last(values: list[float], share: float = 0.1) -> float:
    """The mean of the last tenth, at least one value; what a report gives as the final loss."""
    last = values[-max(1, math.ceil(share * len(values))) :]
    return sum(last) / len(last)
