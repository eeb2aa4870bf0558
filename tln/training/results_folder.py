"""The folder train.out: one run's alone, and what it keeps at the end.

report.json (numbers only) and trusted.safetensors (the private parts that were trained, 0600) are written whole or not
at all; that they can be written is known before anything crosses.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from splitwire.errors import RecordingError, SettingsError
from splitwire.private_files import make_private_folder, replace_private_file

REPORT_FILE = "report.json"
WEIGHTS_FILE = "trusted.safetensors"
RUNNING_FILE = ".running"


def refuse_used(folder: Path) -> None:
    """SettingsError for a folder that holds anything, or a path that is no folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            f"train.out {folder} is not empty", remedy="name a new folder; results are never written over"
        )


@contextmanager
def results_folder(folder: Path) -> Iterator[Path]:
    """The folder, made before the work that is to be kept in it, and this run's alone until it ends.

    The lock on a marker keeps a second run out, and goes with the process. When the work fails the folder goes again,
    unless results or a checkpoint are in it.
    """
    make_private_folder(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"train.out {folder} cannot be written", remedy="name a new folder, or change its owner")
    marker = folder / RUNNING_FILE
    lock = os.open(marker, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise SettingsError(
            f"train.out {folder} belongs to a run that has not ended", remedy="name a new folder, or wait"
        ) from None
    try:
        yield folder
    except BaseException:
        _release(marker, lock)
        with suppress(OSError):  # stays when results are in it
            folder.rmdir()
        raise
    _release(marker, lock)


def _release(marker: Path, lock: int) -> None:
    marker.unlink(missing_ok=True)
    os.close(lock)


def write_results(folder: Path, report: Mapping[str, Any], model: nn.Module) -> None:
    """Keeps the report and every trained parameter; RecordingError when the disk refuses."""
    trained = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.numel()
    }
    text = json.dumps(report, indent=2, allow_nan=False)
    try:
        if trained:
            replace_private_file(folder / WEIGHTS_FILE, safetensors.torch.save(trained))
        replace_private_file(folder / REPORT_FILE, text.encode("ascii"))
    except OSError as error:
        raise RecordingError(
            f"the results cannot be written to {folder}: {error.strerror}", remedy="free the disk and train again"
        ) from None
