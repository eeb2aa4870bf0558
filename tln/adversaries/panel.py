"""All adversaries of a run, one step at a time: they learn on detached rows, then press on the encoder.

    pressure = adversaries.step(released, hidden, context)
    (loss + pressure.on(released.rows)).backward()

They read a frame as it is before the gauges (coordinates) and its 22 invariants, which survive the gauges; so they see
more than the untrusted node. Heads learn to answer; the encoder gets their gradient reversed. MINE learns to raise its
bound; the encoder is to lower it. The Gram term has nothing to learn.

Invariants: losses are means over the rows of a frame and sums over frames, as those of the private loss; nothing here
changes a parameter of the model, and nothing of the model's graph is used for learning. A step given again with the
same state gives the same numbers: what is random comes from the run key by step.

Shapes: N frames, R rows, D width of a row, B = N sequences, T positions, H hidden width, M rows with a label.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from splitwire.errors import StateError
from tln.adversaries.heads import Head, Mine, initialise, reconstruction_loss
from tln.adversaries.invariants import frame_invariants, gram_spread
from tln.adversaries.labels import token_table
from tln.adversaries.settings import AdversarySettings
from tln.context import NO_LABEL, ProtectedFrame, StepContext
from tln.keys import RunKey

_SCOPE = "adversaries"
_HISTORY = "history."


@dataclass(frozen=True)
class Pressure:
    """What one step of the adversaries gave. `gradient` [N, R, D] is what the encoder feels, None in the warm-up.

    `losses` by name: heads as they read after their updates (nats, or 0 to 2 for the reconstruction), `mine_nats`,
    `gram_spread`; all a row or a frame, not summed. TLN only.
    """

    gradient: torch.Tensor | None
    losses: dict[str, float]
    seconds: float

    def on(self, rows: torch.Tensor) -> torch.Tensor:
        """A scalar whose gradient with respect to `rows` is this one; its value means nothing."""
        return rows.new_zeros(()) if self.gradient is None else (rows * self.gradient).sum()


@dataclass(frozen=True)
class _Seen:
    """Rows [N, R, D], their invariants [N, R, 22] and what there is to learn about them, each [N, R].

    `asked` marks rows with a label, decoys too; `pressed` those that are encoded now: real and replayed ones. `hidden`
    [N, R, H] means something for real rows only. The order of the random `ranks` [draws, N, R] shuffles.
    """

    rows: torch.Tensor
    invariants: torch.Tensor
    asked: torch.Tensor
    pressed: torch.Tensor
    classes: torch.Tensor
    rare: torch.Tensor
    real: torch.Tensor
    hidden: torch.Tensor
    ranks: torch.Tensor


class Adversaries:
    """The heads and MINE with their optimizer. `labels` are the next tokens of the training text, of any shape.

    `history` has one value a step of what `Pressure.losses` names, `seconds` what all steps took.
    """

    def __init__(
        self,
        settings: AdversarySettings,
        *,
        row_width: int,
        hidden_width: int,
        labels: torch.Tensor,
        vocabulary_size: int,
        is_permuted: bool,
        run_key: RunKey,
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings = settings
        self.num_steps = 0
        self.history: dict[str, list[float]] = {}
        self.seconds = 0.0
        self._run_key = run_key
        self._with_place = not is_permuted
        self._table = token_table(labels, vocabulary_size, settings.token_classes)
        outputs = {"token": self._table.num_classes, "property": 2, "reconstruction": hidden_width}
        self.networks = nn.ModuleDict(
            {name: Head(row_width, settings.hidden_width, outputs[name]) for name in sorted(settings.heads)}
        )
        if settings.mine_weight > 0:
            self.networks["mine"] = Mine(row_width, settings.hidden_width, self._table.num_classes)
        initialise(self.networks, run_key.stream(_SCOPE, 0, "initial-weights").generator())
        self.networks.to(device)
        self._optimizer: torch.optim.AdamW | None = None
        if settings.has_networks:
            self._optimizer = torch.optim.AdamW(self.networks.parameters(), lr=settings.learning_rate)

    @property
    def is_warm(self) -> bool:
        """Whether the encoder feels the networks by now."""
        return self.num_steps > self.settings.warmup_steps

    def step(self, released: ProtectedFrame, hidden_BTH: torch.Tensor, context: StepContext) -> Pressure:
        """The adversaries' updates on frames with their truth, and then what the encoder is to feel.

        Sequences of `hidden_BTH` that are replayed in place of decoys come last, as the context says.
        """
        began = time.monotonic()
        self.num_steps += 1
        seen = self._see(released, hidden_BTH, context)
        for update in range(self.settings.updates):
            self._update(seen, update)
        gradient, losses = self._press(seen)
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise StateError(
                f"step {context.step}: the adversaries' gradient is not finite",
                remedy="lower adversaries.learning_rate or adversaries.strength",
            )
        for name, value in losses.items():
            self.history.setdefault(name, []).append(value)
        seconds = time.monotonic() - began
        self.seconds += seconds
        return Pressure(gradient, losses, seconds)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a later step depends on beside settings, training text and run key. For a checkpoint."""
        tensors = {
            "num_steps": torch.tensor(self.num_steps),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
        }
        for name, values in self.history.items():
            tensors[f"{_HISTORY}{name}"] = torch.tensor(values, dtype=torch.float64)
        for name, parameter in self.networks.named_parameters():
            tensors[f"parameter.{name}"] = parameter.detach()
            for key, value in self._moments(parameter).items():
                tensors[f"optimizer.{name}.{key}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Goes on where `state` was taken, with equal settings."""
        self.num_steps, self.seconds = int(tensors["num_steps"]), float(tensors["seconds"])
        self.history = {
            name.removeprefix(_HISTORY): values.tolist()
            for name, values in tensors.items()
            if name.startswith(_HISTORY)
        }
        for name, parameter in self.networks.named_parameters():
            with torch.no_grad():
                parameter.copy_(tensors[f"parameter.{name}"])
            start = f"optimizer.{name}."
            moments = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
            if moments and self._optimizer is not None:
                # AdamW counts steps on the host, whatever the device of the parameter
                self._optimizer.state[parameter] = {
                    key: value.clone() if key == "step" else value.to(parameter, copy=True)
                    for key, value in moments.items()
                }

    def _moments(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        return {} if self._optimizer is None else dict(self._optimizer.state.get(parameter, {}))

    def _see(self, released: ProtectedFrame, hidden_BTH: torch.Tensor, context: StepContext) -> _Seen:
        rows, truth = released.rows.detach().float(), released.truth
        if truth is None or len(rows) + context.num_replayed != len(hidden_BTH):
            raise StateError(
                f"step {context.step}: the adversaries need the truth about the rows of one frame a sequence",
                remedy="train with labels; use adversaries on the gram stack only",
            )
        asked, labels = truth.label != NO_LABEL, truth.label.clamp_min(0)
        frames = torch.arange(len(rows)).unsqueeze(1).expand_as(truth.order)
        places = truth.order.clamp(0, hidden_BTH.shape[1] - 1)
        stream = self._run_key.stream(_SCOPE, context.step, "shuffled-classes")
        ranks = torch.from_numpy(stream.uniforms(self.settings.updates + 1, *asked.shape))
        device = rows.device
        return _Seen(
            rows,
            frame_invariants(rows, with_place=self._with_place),
            asked.to(device),
            (asked if context.num_replayed else asked & truth.real).to(device),
            self._table.classes[labels].to(device),
            self._table.rare[labels].to(device),
            truth.real.to(device),
            hidden_BTH.detach().float().to(device)[frames.to(device), places.to(device)],
            ranks.to(device),
        )

    def _update(self, seen: _Seen, update: int) -> None:
        """One AdamW step: every head lower, MINE's bound higher."""
        if self._optimizer is None:
            return
        with torch.enable_grad():
            losses = self._losses(seen, seen.rows, seen.invariants, seen.asked, update)
            total = sum((-value if name == "mine" else value for name, value in losses.items()), torch.zeros(()))
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _press(self, seen: _Seen) -> tuple[torch.Tensor | None, dict[str, float]]:
        rows = seen.rows.clone().requires_grad_()
        with torch.enable_grad():
            invariants = frame_invariants(rows, with_place=self._with_place)
            losses = self._losses(seen, rows, invariants, seen.pressed, self.settings.updates)
            spread = gram_spread(rows)
            felt = self.settings.gram_weight * spread.sum()
            if self.is_warm:
                weights = {"mine": self.settings.mine_weight}
                for name, value in losses.items():
                    felt = felt + len(rows) * weights.get(name, -self.settings.strength) * value
        told = {"mine_nats" if name == "mine" else name: value.item() for name, value in losses.items()}
        told["gram_spread"] = spread.mean().item()
        if not self.is_warm and self.settings.gram_weight == 0:
            return None, told
        return torch.autograd.grad(felt, rows)[0], told

    def _losses(
        self, seen: _Seen, rows_NRD: torch.Tensor, invariants: torch.Tensor, among: torch.Tensor, draw: int
    ) -> dict[str, torch.Tensor]:
        """Means over the rows that `among` [N, R] marks; the reconstruction asks about real rows in any case."""
        rows, features, classes = rows_NRD[among], invariants[among], seen.classes[among]
        losses: dict[str, torch.Tensor] = {}
        for name, network in self.networks.items():
            if name == "mine":
                losses[name] = network(rows, classes, classes[seen.ranks[draw][among].argsort()])
            elif name == "reconstruction":
                answer = network(rows_NRD[seen.real], invariants[seen.real])
                losses[name] = reconstruction_loss(answer, seen.hidden[seen.real])
            else:
                target = classes if name == "token" else seen.rare[among]
                losses[name] = functional.cross_entropy(network(rows, features), target)
        return losses
