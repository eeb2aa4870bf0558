"""Settings of preparation and training on the trusted node. Each is a section of tln.toml."""

from __future__ import annotations

from dataclasses import dataclass

from splitwire.errors import SettingsError
from splitwire.wire import LABEL_PATTERN

_MAX_FRAMES = 1 << 16
"""Far more than one message can hold."""
_MAX_RATE = 1e6
"""Far beyond use; the untrusted node refuses more, when the session is open."""

_COUNTS_AND_RATES = (
    "remote_learning_rate",
    "weight_decay",
    "warmup_steps",
    "max_gradient_norm",
    "max_evaluation_blocks",
    "membership_blocks",
    "public_steps",
    "checkpoint_every",
)


@dataclass(frozen=True)
class PrepareSettings:
    """Where `tln prepare` keeps what it computed; empty means the model cache. Private activations: files 0600."""

    cache_dir: str = ""
    """Folder of what was computed; empty for the model cache."""
    batch_blocks: int = 16
    """Blocks that run through the whole model at once."""


@dataclass(frozen=True)
class TrainSettings:
    """One run of `tln train`. `frames_per_step` frames (gram) or sequences (transformer) cross in one message.

    `learning_rate` is that of the trusted node; the untrusted node's is `remote_learning_rate`, or the same when 0.
    `out` is a new folder for the report and the trained private parts.
    """

    out: str = ""
    """New folder for the report and the trained private parts."""
    steps: int = 100
    """Optimizer steps."""
    frames_per_step: int = 16
    """Frames (gram) or sequences (transformer) that cross in one message."""
    learning_rate: float = 3e-4
    """Learning rate of the trusted node."""
    remote_learning_rate: float = 0.0
    """Learning rate of the untrusted node; 0 for the same."""
    weight_decay: float = 0.0
    """Decoupled weight decay of the trusted node's parameters."""
    warmup_steps: int = 0
    """Steps over which learning rates rise to their full value."""
    max_gradient_norm: float = 0.0
    """Each node clips its own accumulated gradients to this norm; 0 for no clipping."""
    public_steps: int = 0
    """Optimizer steps on the public text before those on the private one; corpus.public_blocks bounds that text."""
    checkpoint_every: int = 0
    """Steps between two checkpoints on both nodes, for --resume; 0 keeps none. The untrusted node needs a folder."""
    train_head: bool = False
    """Whether the first layers are trained too."""
    train_tail: bool = False
    """Whether the last layers are trained too."""
    max_evaluation_blocks: int = 64
    """Held-out blocks that the utility gate scores; 0 for all."""
    membership_blocks: int = 0
    """Blocks of members, and as many held-out ones, that cross as evaluation frames at the end, mixed, so that an audit
    of the gram stack can measure membership; 0 sends none."""
    utility_ceiling_nats: float = 0.35
    """Largest acceptable increase of held-out cross-entropy over the unsplit model."""
    remote_checkpoint: str = ""
    """Label under which the untrusted node saves what it trained; empty saves nothing there."""


def check_train(settings: TrainSettings) -> None:
    """SettingsError for a missing folder and for numbers out of range."""
    if not settings.out:
        raise SettingsError("train.out is empty", remedy="name a new folder for the results of the run")
    for name in ("steps", "frames_per_step"):
        if getattr(settings, name) < 1:
            raise SettingsError(f"train.{name} is {getattr(settings, name)}", remedy="use at least 1")
    if settings.frames_per_step > _MAX_FRAMES:
        raise SettingsError(
            f"train.frames_per_step is {settings.frames_per_step}",
            remedy=f"use at most {_MAX_FRAMES}; the untrusted node may allow fewer rows (limits.max_rows)",
        )
    if not 0 < settings.learning_rate <= _MAX_RATE:
        raise SettingsError(
            f"train.learning_rate is {settings.learning_rate}", remedy="use a number above 0, such as 3e-4"
        )
    if settings.remote_learning_rate > _MAX_RATE:
        raise SettingsError(
            f"train.remote_learning_rate is {settings.remote_learning_rate}",
            remedy="use a rate such as 3e-4, or 0 for train.learning_rate",
        )
    for name in _COUNTS_AND_RATES:
        if getattr(settings, name) < 0:
            raise SettingsError(f"train.{name} is {getattr(settings, name)}", remedy="use 0 (off) or more")
    if settings.remote_checkpoint and not LABEL_PATTERN.fullmatch(settings.remote_checkpoint):
        raise SettingsError(
            f"train.remote_checkpoint {settings.remote_checkpoint!r} is no label",
            remedy="use 1 to 64 letters, digits, '-' and '_'",
        )


def check_prepare(settings: PrepareSettings) -> None:
    """SettingsError for a number out of range."""
    if settings.batch_blocks < 1:
        raise SettingsError(f"prepare.batch_blocks is {settings.batch_blocks}", remedy="use at least 1, such as 16")
