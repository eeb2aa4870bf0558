"""The training loop with adversaries: silent in the warm-up, felt afterwards, apart from the step's time, resumable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tln.adversaries import Adversaries, AdversarySettings
from tln.adversaries.heads import initialise
from tln.context import StepContext
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.clip_noise import ClipNoiseSettings
from tln.mechanisms.decoys import DecoySettings
from tln.mechanisms.mixup import MixupSettings
from tln.pipeline import RELEASED, FrameSettings, build_pipeline
from tln.training.corpus import Blocks
from tln.training.losses import LossSettings
from tln.training.progress import NoProgress
from tln.training.settings import TrainSettings
from tln.training.text import TrainingText
from tln.training.trainer import Trainer

WIDTH, LATENT, BLOCK, VOCABULARY = 12, 8, 6, 16
KEY = RunKey(bytes(32))
FRAME = FrameSettings(
    mechanisms=("bottleneck", "clip_noise", "mixup", "decoys", "permutation", "rotation"),
    bottleneck=BottleneckSettings(width=LATENT),
    clip_noise=ClipNoiseSettings(1.0, 0.05),
    mixup=MixupSettings(pool_size=24),
    decoys=DecoySettings(count=6, pool_size=48),
)
ALL: dict[str, Any] = {"heads": ("token", "property", "reconstruction"), "mine_weight": 0.1, "gram_weight": 0.1}


class _Echo:
    """A crossing whose peer returns rows as they came. `frames` keeps what it saw."""

    policy = None

    def __init__(self) -> None:
        self.frames: list[torch.Tensor] = []

    def reserve_step(self) -> int:
        return len(self.frames) + 1

    def cross(self, rows: torch.Tensor, context: Any, truth: Any) -> torch.Tensor:  # noqa: ARG002 - the seam
        self.frames.append(rows.detach().clone())
        return rows * 1.0

    def optimizer_step(self, learning_rate: float, max_gradient_norm: float = 0.0) -> float:  # noqa: ARG002 - the seam
        return 0.0

    def zero_grad(self) -> None:
        pass


class _Tail(nn.Module):
    device = torch.device("cpu")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class _Model(nn.Module):
    """A real private frame between a head that is not asked and a tail that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = _Tail(), _Tail()
        inputs = MechanismInputs("gram", WIDTH, BLOCK, FrameKeys(KEY, "test"), torch.Generator().manual_seed(1))
        self.pipeline = build_pipeline(FRAME, inputs)
        self.crossing = _Echo()


def _trainer(steps: int, **adversaries: Any) -> Trainer:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (20, BLOCK), generator=generator)
    blocks = Blocks(tokens, tokens.roll(-1, dims=1), torch.arange(20), tuple("abcdefghijklmnopqrst"), 0)
    hidden, targets = (torch.randn(20, BLOCK, WIDTH, generator=generator) for _ in range(2))
    model: Any = _Model()
    panel = None
    if adversaries:
        panel = Adversaries(
            AdversarySettings(**{"hidden_width": 16} | adversaries),
            row_width=LATENT,
            hidden_width=WIDTH,
            labels=blocks.labels,
            vocabulary_size=VOCABULARY,
            is_permuted=True,
            run_key=KEY,
        )
    return Trainer(
        model,
        TrainSettings(steps=steps, frames_per_step=4),
        LossSettings(cross_entropy=0.0),
        TrainingText(blocks, torch.arange(20), hidden, targets),
        KEY,
        adversaries=panel,
    )


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.pipeline.parameters()])


def _trained(steps: int, **adversaries: Any) -> Trainer:
    trainer = _trainer(steps, **adversaries)
    trainer.prime(NoProgress())
    trainer.train(NoProgress())
    return trainer


def test_the_encoder_feels_them_after_the_warm_up_and_not_before() -> None:
    """Bit for bit the same weights and frames while they only learn; other weights once they press."""
    plain, warming, pressed = (
        _trained(4),
        _trained(4, heads=ALL["heads"], mine_weight=0.1, warmup_steps=4),
        _trained(4, heads=ALL["heads"], mine_weight=0.1, warmup_steps=3),
    )
    assert torch.equal(_weights(plain), _weights(warming))
    assert not torch.equal(_weights(plain), _weights(pressed))
    crossings: list[Any] = [trainer.model.crossing for trainer in (plain, pressed)]
    assert torch.equal(torch.stack(crossings[0].frames), torch.stack(crossings[1].frames)), "the fourth update is last"


@pytest.mark.parametrize("weights", [{"heads": ("token",)}, {"mine_weight": 0.1}, {"gram_weight": 0.1}])
def test_each_of_them_alone_is_felt(weights: dict[str, Any]) -> None:
    """No term is without effect; flattening needs no warm-up."""
    warmup = {} if "gram_weight" in weights else {"warmup_steps": 0}
    assert not torch.equal(_weights(_trained(2)), _weights(_trained(2, **weights, **warmup)))


def test_nothing_of_them_is_trained_by_or_saved_with_the_model() -> None:
    """The model's parameters are the same ones; the loop's optimizer has none of theirs."""
    plain, with_them = _trainer(1), _trainer(1, **ALL)
    assert [name for name, _ in plain.model.named_parameters()] == [
        name for name, _ in with_them.model.named_parameters()
    ]
    assert len(plain.parameters) == len(with_them.parameters)


def test_their_time_is_apart_and_each_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's time does not hold it; one value a step of each loss."""
    trainer = _trained(3, **ALL, warmup_steps=1)
    panel = trainer.adversaries
    assert panel is not None
    slow = panel.step

    def slower(*arguments: Any) -> Any:
        panel.seconds += 5.0  # as if five seconds of the step had been theirs
        return slow(*arguments)

    monkeypatch.setattr(panel, "step", slower)
    told: list[float] = []
    trainer._time_step = told.append
    trainer.settings = TrainSettings(steps=5, frames_per_step=4)
    trainer.train(NoProgress())
    assert max(told) < -4.0
    assert set(panel.history) == {"token", "property", "reconstruction", "mine_nats", "gram_spread"}
    assert {len(values) for values in panel.history.values()} == {5}


def test_a_resumed_loop_goes_on_bit_for_bit() -> None:
    """The state of the loop holds that of the adversaries and of mixup's pool."""
    whole = _trained(4, **ALL, warmup_steps=1)
    first = _trained(2, **ALL, warmup_steps=1)
    second = _trainer(4, **ALL, warmup_steps=1)
    second.load_state(first.state())
    crossing: Any = second.model.crossing
    crossing.frames = [torch.empty(0)] * 2
    second.train(NoProgress())
    assert torch.equal(_weights(whole), _weights(second))
    assert whole.adversaries is not None
    assert second.adversaries is not None
    assert whole.adversaries.history == second.adversaries.history


def test_released_rows_are_those_before_the_gauges_and_the_clip_is_not_theirs() -> None:
    """Rotated and permuted they are the frame that crosses; pressure on them is not cut to the clip's norm."""
    trainer = _trainer(1, **ALL)
    trainer.prime(NoProgress())
    batch = trainer._batch(trainer.text, torch.arange(4))
    context = trainer.text.context(batch, step=1)
    pipeline = trainer.model.pipeline
    encoder = next(iter(pipeline.parameters()))
    frame = pipeline.protect(trainer.text.hidden_rows(trainer.model.head, batch.numbers), context)
    released = context.stash[RELEASED]
    norms = [rows.norm(dim=-1).sort().values for rows in (frame.rows, released.rows)]
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(frame.rows, released.rows)
    gradients = []
    for scale in (1.0, 1000.0):
        (gradient,) = torch.autograd.grad((scale * released.rows).sum(), encoder, retain_graph=True)
        gradients.append(gradient)
    torch.testing.assert_close(gradients[1], 1000.0 * gradients[0], rtol=1e-4, atol=1e-4)


NUM_TOKENS, NUM_BLOCKS = 8, 200


def _telling_text(seed: int) -> TrainingText:
    """Hidden rows that hold their next token, and targets that ask for what stands beside it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, NUM_TOKENS, (NUM_BLOCKS, BLOCK), generator=generator)
    hidden = torch.randn(NUM_BLOCKS, BLOCK, WIDTH, generator=generator)
    hidden[..., :NUM_TOKENS] = 2 * functional.one_hot(labels, NUM_TOKENS).float()
    targets = hidden.clone()
    targets[..., :4] += 2 * hidden[..., NUM_TOKENS:]
    blocks = Blocks(labels, labels, torch.arange(NUM_BLOCKS), tuple(map(str, range(NUM_BLOCKS))), 0)
    return TrainingText(blocks, torch.arange(NUM_BLOCKS), hidden, targets)


def _trained_on_telling_text(panel: Adversaries | None) -> Trainer:
    model: Any = _Model()
    settings = TrainSettings(steps=150, frames_per_step=16, learning_rate=3e-3)
    trainer = Trainer(model, settings, LossSettings(cross_entropy=0.0), _telling_text(2), KEY, adversaries=panel)
    trainer.prime(NoProgress())
    trainer.train(NoProgress())
    return trainer


@torch.no_grad()
def _released(trainer: Trainer, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Real rows of text that was not trained on, as they are before the gauges, and their next tokens."""
    text, pipeline = _telling_text(seed), trainer.model.pipeline
    pipeline.keeps_released = True
    context = StepContext(10_000 + seed, tokens=text.blocks.tokens, labels=text.blocks.labels)
    assert text.hidden is not None
    pipeline.protect(text.hidden, context)
    frame = context.stash[RELEASED]
    return frame.rows[frame.truth.real], frame.truth.label[frame.truth.real]


def _fresh_probe_accuracy(trainer: Trainer) -> float:
    """Fitted to 1,200 rows of one text, read from 1,200 rows of another."""
    probe = nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, NUM_TOKENS))
    initialise(probe, torch.Generator().manual_seed(9))
    optimizer = torch.optim.AdamW(probe.parameters(), lr=1e-2)
    rows, labels = _released(trainer, 51)
    for _ in range(150):
        optimizer.zero_grad()
        functional.cross_entropy(probe(rows), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    rows, labels = _released(trainer, 52)
    return float((probe(rows).argmax(dim=-1) == labels).double().mean())


def test_a_fresh_probe_reads_less_of_the_private_frame() -> None:
    """The real encoder, mixup, noise, decoys and gauges: without adversaries a probe reads well over chance (.125)."""
    panel = Adversaries(
        AdversarySettings(heads=("token",), hidden_width=32, learning_rate=5e-3, warmup_steps=20),
        row_width=LATENT,
        hidden_width=WIDTH,
        labels=_telling_text(2).blocks.labels,
        vocabulary_size=VOCABULARY,
        is_permuted=True,
        run_key=KEY,
    )
    plain, defended = _trained_on_telling_text(None), _trained_on_telling_text(panel)
    readings = [_fresh_probe_accuracy(trainer) for trainer in (plain, defended)]
    assert readings[0] > 0.35
    assert readings[1] < readings[0] - 0.1
    assert defended.history.loss[-1] < 0.2 * defended.history.loss[0], "and utility is still learned"
