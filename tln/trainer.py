"""Private fine-tuning: the loop.

    head -> protect -> crossing -> restore -> (distillation) -> tail -> cross-entropy
              `-> (adversaries)

Many frames cross in one message a step. Each node takes one AdamW step, on the gradients of that step alone. The order
of blocks, the initial private weights and who is held out come from the run key, which is fresh for every run.

Refused: a frame before every mechanism is ready; the decoy pool is filled first, with rows that do not cross.

Shapes: B frames or sequences a step, T positions, H hidden width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from tln.adversaries import Adversaries
from tln.batches import ORDER_SCOPE, StepBatch, check_enough, demand_of, make_batch
from tln.calibration import local_gradient
from tln.checkpoints import Stateful, tensors_of
from tln.context import StepContext
from tln.corpus import Blocks
from tln.keys import RunKey
from tln.losses import LossSettings, private_loss
from tln.mechanisms import Mechanism
from tln.model import SplitModelForCausalLM
from tln.pipeline import RELEASED, FramePipeline
from tln.progress import Progress
from tln.train_settings import TrainSettings
from tln.utility import restored_rows


@dataclass(frozen=True)
class TrainingText:
    """Blocks [N, T], the numbers of those that train, what the frozen head makes of them, and their targets.

    `hidden` and `targets` are [N, T, H]; `hidden` is None where the head runs in every step, targets without
    distillation. `baseline_nats` [N, T] is the unsplit model's cross-entropy, for the progress only.
    """

    blocks: Blocks
    members: torch.Tensor
    hidden: torch.Tensor | None
    targets: torch.Tensor | None
    baseline_nats: torch.Tensor | None = None


@dataclass
class History:
    """One entry a step: loss a frame and its parts, in nats or squared error. TLN only.

    Steps of the public phase are in `public_loss` and in `seconds`, and nowhere else.
    """

    loss: list[float] = field(default_factory=list)
    distillation: list[float] = field(default_factory=list)
    cross_entropy: list[float] = field(default_factory=list)
    public_loss: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint, in float64."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in vars(self).items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `state` gave."""
        for name in vars(self):
            setattr(self, name, tensors[name].tolist())


class Trainer:
    """Trains the private parts of a split model here, and has the untrusted node train its own.

    `time_step` is told how many seconds each step took, the time of `adversaries` apart; `show_loss` the loss of each,
    and its cross-entropy above the unsplit model's where that is known.
    """

    def __init__(
        self,
        model: SplitModelForCausalLM,
        settings: TrainSettings,
        loss: LossSettings,
        text: TrainingText,
        run_key: RunKey,
        time_step: Callable[[float], object] = lambda _seconds: None,
        public: TrainingText | None = None,
        adversaries: Adversaries | None = None,
        *,
        wire_bytes: Callable[[], int] | None = None,
        show_loss: Callable[[float, float | None], object] = lambda _nats, _delta_nats: None,
    ) -> None:
        self.model = model
        self._wire_bytes = wire_bytes
        self._delta_nats: float | None = None
        self.adversaries = adversaries
        self.public = public
        self.history = History()
        self.num_done = 0
        self.settings = settings
        self.loss = loss
        self.text = text
        self._run_key = run_key
        self._time_step = time_step
        self._show_loss = show_loss
        if adversaries is not None:
            model.pipeline.keeps_released = True
        freeze_parts(model, settings)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def prime(self, progress: Progress) -> None:
        """Fills the decoy pool with rows of the text that is trained on first. Nothing crosses."""
        pipeline = self.model.pipeline
        text = self.public or self.text
        batches = self._batches("prime", text)
        self._check_replay()
        priming = 0
        if not pipeline.is_ready:
            progress.begin("decoy pool", 0)
        while not pipeline.is_ready:
            priming += 1
            batch = StepBatch(next(batches))
            context = self._context(text, batch, step=0)
            context.priming = priming
            hidden = self._hidden(text, batch.numbers).detach()
            pipeline.prime(hidden, context)
            self._prime_gradients(text, batch, hidden, priming)
            progress.advance(len(batch.numbers))

    def _prime_gradients(self, text: TrainingText, batch: StepBatch, hidden: torch.Tensor, priming: int) -> None:
        """Gives gradients of these blocks, computed here alone, to what puts them in place of those of decoys."""
        waiting = [
            part for part in self.model.pipeline.modules() if isinstance(part, Mechanism) and part.needs_gradients
        ]
        if not waiting:
            return
        is_latent = "bottleneck" in self.model.pipeline.describe()
        gradient = local_gradient(
            self.model.tail,
            self.model.pipeline.local() if is_latent else FramePipeline(),
            hidden,
            self._targets(text, batch, hidden.device),
            text.blocks.labels[batch.numbers],
            self.loss,
            StepContext(0, priming=priming),
            is_latent=is_latent,
        )
        for part in waiting:
            part.absorb_gradient(gradient)

    def _check_replay(self) -> None:
        num_real = self.settings.frames_per_step
        demand = demand_of(self.model.pipeline, num_real)
        if demand.num_replayed:
            for text in (self.text, *([self.public] if self.public else [])):
                check_enough(text.members, demand.num_replayed, num_real // demand.num_groups)

    def train(self, progress: Progress, keep: Callable[[Trainer], object] = lambda _trainer: None) -> History:
        """Takes the steps that are not done yet, those on public text first; the loss of each is in the history.

        `keep` is called every `checkpoint_every` steps, before the first and after the last.
        """
        for text, last in ((self.public, self.settings.public_steps), (self.text, self.num_steps)):
            if text is not None and self.num_done < last:
                self._phase(text, last, progress, keep)
        keep(self)
        return self.history

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on beside settings, texts and run key. TLN only."""
        tensors = {"num_done": torch.tensor(self.num_done), "torch_rng": torch.get_rng_state()}
        for name, parameter in self._trained().items():
            tensors[f"parameter.{name}"] = parameter
            moments = self.optimizer.state.get(parameter, {})
            tensors |= {f"optimizer.{name}.{key}": value for key, value in moments.items()}
        for owner, part in self._parts().items():
            tensors |= {f"{owner}.{name}": value for name, value in part.state().items()}
        return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the state of an equal trainer."""
        self.num_done = int(tensors["num_done"])
        torch.set_rng_state(tensors["torch_rng"])
        with torch.no_grad():
            for name, parameter in self._trained().items():
                parameter.copy_(tensors[f"parameter.{name}"])
                # AdamW counts steps on the host, whatever the device of the parameter
                moments = {
                    key: value.clone() if key == "step" else value.to(parameter)
                    for key, value in tensors_of(tensors, f"optimizer.{name}").items()
                }
                if moments:
                    self.optimizer.state[parameter] = moments
        for owner, part in self._parts().items():
            part.load_state(tensors_of(tensors, owner))

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter.numel()
        }

    def _parts(self) -> dict[str, Stateful]:
        """By name, what keeps something from step to step beside parameters."""
        candidates: dict[str, object] = {
            "history": self.history,
            "policy": self.model.crossing.policy,
            "adversaries": self.adversaries,
        }
        candidates |= {f"mechanism.{part.name}": part for part in self.model.pipeline.mechanisms}
        return {name: part for name, part in candidates.items() if isinstance(part, Stateful)}

    @property
    def num_steps(self) -> int:
        """Steps of both phases."""
        return self.settings.public_steps + self.settings.steps

    def _phase(self, text: TrainingText, last: int, progress: Progress, keep: Callable[[Trainer], object]) -> None:
        first = 0 if text is self.public else self.settings.public_steps
        progress.begin("public training" if text is self.public else "training", last - first)
        progress.advance(self.num_done - first)
        batches = self._batches("train", text)
        for _ in range(first, self.num_done):
            next(batches)
        every = self.settings.checkpoint_every
        while self.num_done < last:
            if every and self.num_done % every == 0:
                keep(self)
            began, apart = time.monotonic(), self._seconds_apart()
            self._step(text, next(batches))
            seconds = time.monotonic() - began - (self._seconds_apart() - apart)
            self.num_done, self.history.seconds = self.num_done + 1, self.history.seconds + seconds
            self._time_step(seconds)
            self._show_loss(self._last_loss(text), self._delta_nats)
            progress.advance(1, self._note(text, seconds))

    def _last_loss(self, text: TrainingText) -> float:
        return (self.history.public_loss if text is self.public else self.history.loss)[-1]

    def _note(self, text: TrainingText, seconds: float) -> str:
        loss = self._last_loss(text)
        num_tokens = self.settings.frames_per_step * text.blocks.tokens.shape[1]
        parts = [f"loss {loss:.4f}", f"{num_tokens / seconds:.0f} tokens/s"]
        if self._delta_nats is not None:
            parts.insert(1, f"utility {self._delta_nats:+.2f} nats")
        if self._wire_bytes is not None:
            parts.append(f"{self._wire_bytes() / 1e6:.3f} MB crossed")
        return ", ".join(parts)

    def _step(self, text: TrainingText, chosen: torch.Tensor) -> None:
        history = self.history
        factor = learning_rate_factor(self.num_done, self.settings.warmup_steps)
        batch = self._batch(text, chosen)
        context = self._context(text, batch, step=self.model.crossing.reserve_step())
        hidden = self._hidden(text, batch.numbers)
        restored = restored_rows(self.model, hidden, context)
        target = self._targets(text, batch, restored.device)
        labels = batch.loss_labels(text.blocks.labels[batch.numbers])
        value = private_loss(self.model.tail, restored, target, labels, self.loss, batch.sent_rows(labels.shape[1]))
        self._add_pressure(value.total, hidden, context).backward()  # type: ignore[no-untyped-call]
        self._update(factor)
        self._delta_nats = None
        if text.baseline_nats is not None and self.loss.cross_entropy > 0:
            self._delta_nats = value.cross_entropy - text.baseline_nats[batch.numbers].mean().item()
        if text is self.public:
            history.public_loss.append(value.total.item() / len(labels))
            return
        history.loss.append(value.total.item() / len(labels))
        history.distillation.append(value.distillation)
        history.cross_entropy.append(value.cross_entropy)

    def _add_pressure(self, total: torch.Tensor, hidden: torch.Tensor, context: StepContext) -> torch.Tensor:
        """The loss with what the encoder is to feel of the adversaries; the loss itself without any."""
        if self.adversaries is None:
            return total
        released = context.stash.pop(RELEASED)
        return total + self.adversaries.step(released, hidden, context).on(released.rows)

    def _seconds_apart(self) -> float:
        return 0.0 if self.adversaries is None else self.adversaries.seconds

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

    def _batch(self, text: TrainingText, chosen: torch.Tensor) -> StepBatch:
        demand = demand_of(self.model.pipeline, len(chosen))
        return make_batch(demand, chosen, text.members, text.blocks.tokens.shape[1], self._run_key, self.num_done)

    def _targets(self, text: TrainingText, batch: StepBatch, device: torch.device) -> torch.Tensor | None:
        return None if text.targets is None else text.targets[batch.numbers].to(device)

    def _hidden(self, text: TrainingText, chosen: torch.Tensor) -> torch.Tensor:
        head = self.model.head
        if text.hidden is None or any(parameter.requires_grad for parameter in head.parameters()):
            hidden: torch.Tensor = head(text.blocks.tokens[chosen].to(head.device))
            return hidden
        return text.hidden[chosen].to(head.device)

    def _context(self, text: TrainingText, batch: StepBatch, step: int) -> StepContext:
        blocks, chosen = text.blocks, batch.numbers
        return StepContext(
            step,
            mode="train",
            tokens=blocks.tokens[chosen],
            labels=blocks.labels[chosen],
            documents=None if text is self.public else blocks.documents[chosen],
            num_replayed=batch.num_replayed,
            real_lengths=batch.real_lengths,
        )

    def _batches(self, purpose: str, text: TrainingText) -> Iterator[torch.Tensor]:
        """Block numbers of one step after the other; every epoch in a fresh order, batches never smaller."""
        size, left = self.settings.frames_per_step, torch.empty(0, dtype=torch.int64)
        epoch = 0
        while True:
            while len(left) < size:
                name = f"public {purpose}" if text is self.public else purpose
                stream = self._run_key.stream(ORDER_SCOPE, epoch, name)
                order = torch.from_numpy(stream.permutations(1, len(text.members))[0])
                left, epoch = torch.cat((left, text.members[order])), epoch + 1
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
