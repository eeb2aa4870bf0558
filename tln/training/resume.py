"""How a run keeps its checkpoints, and where it goes on: trainer, ledger and journal put back together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tln.connect import Connected
from tln.keys import RunKey
from tln.training.checkpoints import Checkpoints, SavedRun, tensors_of
from tln.training.ledger import Ledger
from tln.training.settings import TrainSettings
from tln.training.trainer import Trainer

Resume = Literal["never", "same_noise", "fresh_noise"]
"""Whether a run goes on from its checkpoint, and with the streams of its first time or with new ones."""


@contextmanager
def run_checkpoints(
    settings: TrainSettings, run_key: RunKey, hashed: str, saved: SavedRun | None, resume: Resume
) -> Iterator[Checkpoints | None]:
    """The checkpoints of the run, when it keeps any; what it needs to go on stays when the block fails."""
    if not settings.checkpoint_every:
        yield None
        return
    checkpoints = Checkpoints(
        Path(settings.out), run_key, hashed, is_new=saved is None, fresh_noise=resume == "fresh_noise"
    )
    try:
        yield checkpoints
    except BaseException:
        checkpoints.abandon()
        raise


def begin(
    checkpoints: Checkpoints | None, connected: Connected, trainer: Trainer, ledger: Ledger, saved: SavedRun | None
) -> Callable[[Trainer], object]:
    """Puts trainer and ledger where the run goes on; what keeps them from then on."""
    if checkpoints is None:
        return lambda _trainer: None
    crossing = connected.model.crossing
    if saved is None:
        checkpoints.begin(crossing, connected.key_scope)
    else:
        trainer.load_state(saved.tensors)
        ledger.load_state(tensors_of(saved.tensors, "ledger"))
        checkpoints.resume(saved, crossing, connected.key_scope)

    def keep(trainer: Trainer) -> None:
        kept = {f"ledger.{name}": value for name, value in ledger.state().items()}
        checkpoints.save(crossing, trainer.state() | kept, trainer.num_done)

    return keep
