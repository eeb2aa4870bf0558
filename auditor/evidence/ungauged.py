"""Rows without their gauges, as `tln replay BUNDLE --key KEY --out FOLDER` writes them: what an attacker has of the
frames whose gauges leaked.

The folder holds SESSION/STEP-forward.safetensors with rows [N, R, D] and, where the replay had the truth, real, order,
token, label and document [N, R] in the order of the rows; STEP-backward.safetensors holds the gradient rows. It is read
like a bundle and joined with its own truth, since the rows no longer stand in the order in which they crossed.

Refused: a folder without such files, files of another form, a replay without truth, a step that no truth of the audit
knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from auditor.evidence.capture import Capture
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.sources import TruthSource
from auditor.evidence.splits import Splits, split_capture
from auditor.plan import Plan
from splitwire.bundles import hop_name
from splitwire.bundles.manifest import hash_file
from splitwire.errors import BundleError
from splitwire.v1 import stack_pb2

_FILE = re.compile(r"(\d{8})-(forward|backward)\.safetensors")
_ABOUT = ("real", "order", "token", "label", "document")
_MODES = {"train": stack_pb2.COMPUTE_MODE_TRAIN, "evaluate": stack_pb2.COMPUTE_MODE_EVALUATE}
_REMEDY = "name the --out folder of tln replay, run on these bundles with their truth"


@dataclass(frozen=True, eq=False)
class UngaugedFrame:
    """One frame; `message_digest` names its file."""

    session_hash: str
    header: stack_pb2.FrameHeader
    message_digest: str
    tensor: torch.Tensor


@dataclass(frozen=True, eq=False)
class _Record:
    forward_digest: str
    real: Any
    order: Any
    token: Any
    label: Any
    document: Any


@dataclass(frozen=True, eq=False)
class _Truth:
    """What the files say of the steps that one truth of the audit knows."""

    records: Mapping[tuple[str, int], Any]
    documents: Sequence[Mapping[str, Any]]
    is_complete: bool = True


class UngaugedFolder:
    """The files of a replay, read like a bundle."""

    def __init__(self, folder: Path, truths: Sequence[TruthSource]) -> None:
        self.problems: list[str] = []
        self._truths = truths
        self._files: dict[str, list[tuple[str, int, Path]]] = {"forward": [], "backward": []}
        for file in _replayed(folder):
            found = _FILE.fullmatch(file.name)
            if found:
                self._files[found.group(2)].append((file.parent.name, int(found.group(1)), file))

    def frames(self, hop: Any, session: str | None = None) -> Iterator[UngaugedFrame]:
        """Frames of one hop in the order of session and step."""
        for name, step, file in self._files.get(hop_name(hop).lower(), []):
            if session in (None, name):
                header = stack_pb2.FrameHeader(hop=hop, step=step, compute_mode=self._mode(name, step))
                yield UngaugedFrame(name, header, file.name, _load(file)["rows"])

    def messages(self, hop: Any = None, session: str | None = None) -> Iterator[Any]:
        """None: a replay keeps frames alone."""
        del hop, session
        return iter(())

    def truths(self) -> list[_Truth]:
        """What the files say of their rows, by the truth of the audit that knows their step."""
        parts: list[dict[tuple[str, int], _Record]] = [{} for _ in self._truths]
        for name, step, file in self._files["forward"]:
            parts[self._owner(name, step)][name, step] = _record(file)
        return [_Truth(part, truth.documents) for part, truth in zip(parts, self._truths, strict=True)]

    def _owner(self, session: str, step: int) -> int:
        for number, truth in enumerate(self._truths):
            if (session, step) in truth.records:
                return number
        raise BundleError(f"no truth knows step {step} of session {session}", remedy=_REMEDY)

    def _mode(self, session: str, step: int) -> Any:
        truth = self._truths[self._owner(session, step)]
        return _MODES.get(truth.records[session, step].phase, stack_pb2.COMPUTE_MODE_CACHED)


@contextlib.contextmanager
def opened_ungauged(folder: Path, material: Material, plan: Plan) -> Iterator[tuple[Capture, Splits]]:
    """The capture of the material's rows without gauges, and its split, while a scope lasts."""
    source = UngaugedFolder(folder, material.truths)
    with tempfile.TemporaryDirectory(prefix="splitwire-ungauged-") as rows:
        capture = read_capture([source], source.truths(), compute_modes=plan.compute_modes, folder=Path(rows))
        try:
            yield capture, split_capture(capture, plan.split)
        finally:
            capture.close()


def ungauged_digest(folder: Path) -> str:
    """SHA-256 hex over the names and bytes of the files of a replay; BundleError where the folder holds none."""
    digest = hashlib.sha256()
    for file in _replayed(folder):
        digest.update(f"{file.parent.name}/{file.name} {hash_file(file).sha256}\n".encode())
    return digest.hexdigest()


def _replayed(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*/*.safetensors"))
    if not any((found := _FILE.fullmatch(file.name)) and found.group(2) == "forward" for file in files):
        raise BundleError(f"{folder} holds no rows without gauges", remedy=_REMEDY)
    return files


def _record(file: Path) -> _Record:
    tensors = _load(file)
    if any(name not in tensors for name in _ABOUT):
        raise BundleError(f"{file.parent.name}/{file.name} does not say what its rows are", remedy=_REMEDY)
    values = {name: tensors[name].numpy() for name in _ABOUT}
    return _Record(file.name, **(values | {"real": values["real"] != 0}))


def _load(file: Path) -> dict[str, torch.Tensor]:
    try:
        tensors = safetensors.torch.load_file(file)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{file.parent.name}/{file.name} cannot be read: {error}", remedy=_REMEDY) from None
    if "rows" not in tensors or tensors["rows"].ndim != len(("N", "R", "D")):
        raise BundleError(f"{file.parent.name}/{file.name} holds no rows [N, R, D]", remedy=_REMEDY)
    return tensors
