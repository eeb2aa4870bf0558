"""A digest of the delegated layers' weights as stored, so that two nodes notice when they hold different models.

SHA-256 over (name, dtype, shape, bytes) of every tensor of layers [first_layer, last_layer), in layer and name order,
read straight from the files. Names are `<layer>.<rest>`, so that the same weights under another prefix agree. It
detects mistakes; a lying node can echo it. Results for large layers are kept in the cache folder, keyed by path, size
and change time of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from splitwire.backbone.checkpoint import StoredTensor, open_checkpoint
from splitwire.backbone.families import checkpoint_prefix, family_of
from splitwire.backbone.loading import load_config
from splitwire.backbone.settings import ModelSettings
from splitwire.v1 import stack_pb2

_READ_BYTES = 4 << 20
_MEMO_MIN_BYTES = 64 << 20  # below this, reading is as quick as looking up


def fingerprint(settings: ModelSettings) -> str:
    """64 hex digits for the delegated layers; no model is built for it."""
    tensors = delegated_tensors(settings)
    if sum(stored.end - stored.start for _, stored in tensors) < _MEMO_MIN_BYTES:
        return _digest(tensors)
    memo = settings.cache_folder() / "fingerprints" / f"{_files_key(tensors)}.txt"
    with contextlib.suppress(OSError):
        return memo.read_text(encoding="ascii")
    value = _digest(tensors)
    _remember(memo, value)
    return value


def identity(settings: ModelSettings) -> stack_pb2.ModelIdentity:
    """The delegated part as both sides of a handshake describe it."""
    config = load_config(settings)
    first, last = settings.layer_range(int(config.num_hidden_layers))
    return stack_pb2.ModelIdentity(
        family=config.model_type,
        first_layer=first,
        last_layer=last,
        hidden_width=int(config.hidden_size),
        fingerprint=fingerprint(settings),
    )


def delegated_tensors(settings: ModelSettings) -> list[tuple[str, StoredTensor]]:
    """`<layer>.<rest>` and place of every delegated tensor, in layer and name order."""
    checkpoint = open_checkpoint(settings)
    config = load_config(settings)
    family = family_of(config)
    first, last = settings.layer_range(int(config.num_hidden_layers))
    start = f"{checkpoint_prefix(family, checkpoint.tensors)}{family.layers}."
    found = []
    for name, stored in checkpoint.tensors.items():
        if name.startswith(start):
            number, rest = name.removeprefix(start).split(".", 1)
            if first <= int(number) < last:
                found.append((int(number), rest, stored))
    return [(f"{number}.{rest}", stored) for number, rest, stored in sorted(found, key=lambda item: item[:2])]


def _digest(tensors: list[tuple[str, StoredTensor]]) -> str:
    digest = hashlib.sha256()
    for name, stored in tensors:
        digest.update(json.dumps([name, stored.dtype, list(stored.shape)], separators=(",", ":")).encode("ascii"))
        with stored.file.open("rb") as file:
            file.seek(stored.start)
            left = stored.end - stored.start
            while left > 0 and (block := file.read(min(left, _READ_BYTES))):
                digest.update(block)
                left -= len(block)
    return digest.hexdigest()


def _files_key(tensors: list[tuple[str, StoredTensor]]) -> str:
    digest = hashlib.sha256()
    for name, stored in tensors:
        digest.update(f"{name}|{stored.start}|{stored.end}\n".encode())
    for file in sorted({stored.file for _, stored in tensors}):
        status = file.stat()
        digest.update(f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _remember(memo: Path, value: str) -> None:
    """Best effort: a cache folder that cannot be written costs time, not correctness."""
    with contextlib.suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=memo.parent)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(value)
        Path(name).replace(memo)
