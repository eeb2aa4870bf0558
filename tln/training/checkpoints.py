"""Checkpoints of a training run on this node, each paired with one on the untrusted node.

    TRAIN.OUT/checkpoint.safetensors   parameters, moments, decoy pools, losses; and which label it belongs to
    TRAIN.OUT/run.key                  the run key, 0600, until the run has ended
    TRAIN.OUT/sent.journal             what was sent since (journal.py)

The order makes the pair: the untrusted node saves under a label of its own for each step and confirms with a digest;
then the file here is replaced, which names label and digest; then the label before is dropped there. So whatever dies
when, the file here names a label that is there, and a step is in both halves or in neither. A resumed run tells the
untrusted node that label, compares the digest that it loaded, and takes the steps after the checkpoint again.

Invariant of the streams: every random number derives from (run key, scope, step, purpose). The scope is the hash of
the session in which the run began and is kept here, because a resumed run has another session; step numbers go on
from the checkpoint. So a step taken again has the streams of its first time, and the journal lets it cross with the
bytes of its first time only. With fresh noise the scope is the new session's, and is durable before anything crosses.

Refused: other settings or texts than those of the checkpoint, and a file or key that is not whole or was changed. Never
pickle. TLN only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from splitwire.errors import RecordingError, SettingsError
from splitwire.private_files import replace_private_file, write_private_file
from splitwire.settings import canonical_json, to_tree
from tln.crossing import Crossing
from tln.keys import RunKey
from tln.session import Continuation
from tln.settings import TlnSettings
from tln.training.journal import Journal

STATE_FILE = "checkpoint.safetensors"
KEY_FILE = "run.key"
JOURNAL_FILE = "sent.journal"

_FORMAT = "splitwire-training-1"
_LABEL_SCOPE = "checkpoint"
_LOST = "restore the folder from a copy, or start again in a new one"
_FREE_SECTIONS = ("connection", "record", "metrics", "prepare")
"""What a resumed run may change: where things are, and nothing that enters a computation."""


@runtime_checkable
class Stateful(Protocol):
    """What a checkpoint keeps beside parameters: pools, histories, optimizers."""

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next step depends on, as tensors by name."""

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes what `state` of an equal object gave."""


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint that was read. `run_hash` is that of settings and texts."""

    run_key: RunKey
    continuation: Continuation
    previous_label: str
    run_hash: str
    tensors: dict[str, torch.Tensor]


class Checkpoints:
    """Keeps the checkpoints of one run in its folder. Close it when the run ends, in whichever way."""

    def __init__(
        self, folder: Path, run_key: RunKey, run_hash: str, *, is_new: bool, fresh_noise: bool = False
    ) -> None:
        self._folder = folder
        self._run_key = run_key
        self._run_hash = run_hash
        if is_new:
            write_private_file(folder / KEY_FILE, run_key.reveal())
        self.journal = Journal(folder / JOURNAL_FILE, is_void=fresh_noise)
        self._label = ""
        self._scope = ""

    def begin(self, crossing: Crossing, scope: str) -> None:
        """A new run: streams under `scope`, which is told to every checkpoint."""
        self._scope = scope
        crossing.guards.append(self.journal.guard)

    def resume(self, saved: SavedRun, crossing: Crossing, scope: str) -> None:
        """Goes on from `saved` under `scope`. Another scope than its own is made durable first."""
        if scope != saved.continuation.key_scope:
            self._write(saved.tensors, saved.continuation.moved_to(scope), saved.previous_label)
            self.journal.forget()
        self._label, self._scope = saved.continuation.label, scope
        if saved.previous_label:
            crossing.drop_checkpoint(saved.previous_label)
        crossing.guards.append(self.journal.guard)

    def save(self, crossing: Crossing, tensors: Mapping[str, torch.Tensor], num_done: int) -> None:
        """Has both nodes save the state after `num_done` steps; the one before goes when this one is durable."""
        label, previous = f"{self._tag()}-{num_done}", self._label
        if label == previous:
            return
        digest = crossing.checkpoint(label)
        self._write(tensors, Continuation(label, digest, crossing.last_step, self._scope), previous)
        self._label = label
        if previous:
            crossing.drop_checkpoint(previous)
        self.journal.forget()

    def end(self, crossing: Crossing) -> None:
        """The results are kept elsewhere: removes the key and the checkpoint here, and its half there."""
        self.journal.close()
        for name in (STATE_FILE, KEY_FILE):
            (self._folder / name).unlink(missing_ok=True)
        self.journal.remove()
        if self._label:
            crossing.drop_checkpoint(self._label)

    def abandon(self) -> None:
        """The run failed: keeps what it needs to go on, or nothing when there is no checkpoint."""
        self.journal.close()
        if not (self._folder / STATE_FILE).exists():
            (self._folder / KEY_FILE).unlink(missing_ok=True)
            self.journal.remove()

    def _tag(self) -> str:
        """A name for the run that tells nothing of it."""
        return f"{int(self._run_key.stream(_LABEL_SCOPE, 0, 'label').uniforms(1)[0] * 2**48):012x}"

    def _write(self, tensors: Mapping[str, torch.Tensor], continuation: Continuation, previous: str) -> None:
        facts = {**vars(continuation), "previous_label": previous, "run_hash": self._run_hash}
        facts["sha256"] = _digest(tensors, self._run_key)
        content = safetensors.torch.save(dict(tensors), {_FORMAT: json.dumps(facts)})
        try:
            replace_private_file(self._folder / STATE_FILE, content)
        except OSError as error:
            can_resume = (self._folder / STATE_FILE).exists()
            raise RecordingError(
                f"the checkpoint cannot be written to {self._folder}: {error.strerror}",
                remedy=f"free the disk and {'go on with tln train --resume' if can_resume else 'start again'}",
            ) from None


def read_checkpoint(folder: Path) -> SavedRun:
    """The checkpoint in `folder`; SettingsError when there is none, RecordingError when it does not read."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise SettingsError(
            f"train.out {folder} holds no checkpoint",
            remedy="name the folder of a run with train.checkpoint_every that was cut off, or start without --resume",
        )
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})[_FORMAT])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        fields = {name: facts[name] for name in ("label", "digest", "last_step", "key_scope")}
        run_key = RunKey((folder / KEY_FILE).read_bytes())
        is_whole = facts["sha256"] == _digest(tensors, run_key)
        saved = SavedRun(run_key, Continuation(**fields), facts["previous_label"], facts["run_hash"], tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, SettingsError) as error:
        raise RecordingError(
            f"the checkpoint in {folder} is not readable ({type(error).__name__})", remedy=_LOST
        ) from None
    if not is_whole:
        raise RecordingError(f"{path} or {KEY_FILE} beside it was changed after it was written", remedy=_LOST)
    return saved


def _digest(tensors: Mapping[str, torch.Tensor], run_key: RunKey) -> str:
    """SHA-256 hex of all that is kept and the key it belongs to, so that damage is not trained on."""
    digest = hashlib.sha256(run_key.reveal())
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def run_hash(settings: TlnSettings, dependencies: Mapping[str, Any]) -> str:
    """SHA-256 hex over all that enters a computation: settings, model and texts. TLN only."""
    tree = {name: section for name, section in to_tree(settings).items() if name not in _FREE_SECTIONS}
    tree["train"] = {name: value for name, value in tree["train"].items() if name != "out"}
    return hashlib.sha256(canonical_json({"settings": tree, "dependencies": dict(dependencies)})).hexdigest()


def check_resumable(saved: SavedRun, wanted: str) -> None:
    """SettingsError unless the checkpoint is of a run with the same settings and texts."""
    if saved.run_hash != wanted:
        raise SettingsError(
            "settings or texts are not those of the checkpoint",
            remedy=f"resume with the same ones; only [{'], ['.join(_FREE_SECTIONS)}] and train.out may change",
        )


def tensors_of(tensors: Mapping[str, torch.Tensor], owner: str) -> dict[str, torch.Tensor]:
    """The tensors of one owner, by their own names."""
    return {name.removeprefix(f"{owner}."): value for name, value in tensors.items() if name.startswith(f"{owner}.")}
