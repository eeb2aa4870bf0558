"""Private fine-tuning: the loop.

    head -> protect -> crossing -> restore -> (distillation) -> tail -> cross-entropy
              `-> (adversaries)

Many frames cross in one message a step. Each node takes one AdamW step, on the gradients of that step alone. The order
of blocks, the initial private weights and who is held out come from the run key, which is fresh for every run.

Refused: a frame before every mechanism is ready; the decoy pool is filled first, with rows that do not cross.

Shapes: B frames or sequences a step, T positions, H hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from tln.adversaries import Adversaries
from tln.context import StepContext
from tln.keys import RunKey
from tln.model import SplitModelForCausalLM
from tln.pipeline import RELEASED
from tln.training.batches import StepBatch, demand_of, make_batch
from tln.training.checkpoints import Stateful, tensors_of
from tln.training.loss_history import History
from tln.training.losses import LossSettings, private_loss
from tln.training.priming import check_replay, fill_pools
from tln.training.progress import Progress
from tln.training.settings import TrainSettings
from tln.training.text import TrainingText
from tln.training.utility import restored_rows


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
        for text in (self.text, *([self.public] if self.public else [])):
            check_replay(self.model.pipeline, text, self.settings.frames_per_step)
        fill_pools(
            self.model, self.public or self.text, self.loss, self.settings.frames_per_step, self._run_key, progress
        )

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
        first = 0 if text.is_public else self.settings.public_steps
        progress.begin("public training" if text.is_public else "training", last - first)
        progress.advance(self.num_done - first)
        batches = text.orders(self.settings.frames_per_step, self._run_key, "train")
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
        return (self.history.public_loss if text.is_public else self.history.loss)[-1]

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
        context = text.context(batch, step=self.model.crossing.reserve_step())
        hidden = text.hidden_rows(self.model.head, batch.numbers)
        restored = restored_rows(self.model, hidden, context)
        target = text.target_rows(batch.numbers, restored.device)
        labels = batch.loss_labels(text.blocks.labels[batch.numbers])
        value = private_loss(self.model.tail, restored, target, labels, self.loss, batch.sent_rows(labels.shape[1]))
        self._add_pressure(value.total, hidden, context).backward()  # type: ignore[no-untyped-call]
        self._update(factor)
        self._delta_nats = None
        if text.baseline_nats is not None and self.loss.cross_entropy > 0:
            self._delta_nats = value.cross_entropy - text.baseline_nats[batch.numbers].mean().item()
        if text.is_public:
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
