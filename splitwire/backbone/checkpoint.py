"""Where a model's files are, and reading single tensors out of them.

`open_checkpoint` turns the `source` of the settings into a folder with safetensors: a local folder as it is, a hub id
through the hub's own cache, anything else converted once into our cache. Only the safetensors headers are read until a
tensor is asked for, so a node reads and keeps nothing but the tensors of its own part.

Refused with ModelError: a source that is nowhere, a tensor that no file has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from splitwire.backbone import embedded
from splitwire.backbone.settings import EMBEDDED_MODEL, ModelSettings
from splitwire.errors import ModelError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_SAFETENSORS_PATTERN = "model*.safetensors"
_PYTORCH_PATTERN = "pytorch_model*.bin"
_HUB_PATTERNS = ("*.json", "*.model", "*.txt", "*.jinja")
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as it lies in a safetensors file: where its bytes are, and what they mean."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """A folder with config, tokenizer and safetensors."""

    folder: Path

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every stored tensor by name, from the headers alone."""
        return {tensor.name: tensor for file in self._files() for tensor in _read_header(file)}

    def read(self, names: Iterable[str], dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """The named tensors, in `dtype` if given; one file is open at a time, and nothing else is read from it."""
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.stored(name).file, []).append(name)
        for file, wanted in by_file.items():
            with safe_open(file, framework="pt") as opened:
                for name in wanted:
                    tensor = opened.get_tensor(name)
                    yield name, tensor if dtype is None else tensor.to(dtype)

    def stored(self, name: str) -> StoredTensor:
        """Where one tensor lies; ModelError when it is nowhere."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelError(
                f"tensor {name} is missing in {self.folder}", remedy="check that the checkpoint is complete"
            ) from None

    def _files(self) -> list[Path]:
        index = self.folder / _INDEX_FILE
        if index.is_file():
            names = _indexed_files(index)
            files = [self.folder / Path(name).name for name in sorted(names)]
        elif (self.folder / _SINGLE_FILE).is_file():
            files = [self.folder / _SINGLE_FILE]
        else:
            files = sorted(self.folder.glob("*.safetensors"))
        missing = [file.name for file in files if not file.is_file()]
        if missing or not files:
            raise ModelError(
                f"weights are missing in {self.folder}: {', '.join(missing) or '*.safetensors'}",
                remedy="complete the download",
            )
        return files


def open_checkpoint(settings: ModelSettings) -> Checkpoint:
    """The checkpoint that the settings name, converted into the cache first if its form needs it."""
    source = Path(settings.source).expanduser()
    if settings.source == EMBEDDED_MODEL:
        return _embedded(settings)
    if source.is_file() and source.suffix == ".gguf":
        return _converted_gguf(settings, source.parent, source.name)
    folder = source if source.is_dir() else _from_hub(settings)
    if settings.gguf_file:
        return _converted_gguf(settings, folder, settings.gguf_file)
    if any(folder.glob("*.safetensors")):
        return Checkpoint(folder)
    return _converted_folder(settings, folder)


def _embedded(settings: ModelSettings) -> Checkpoint:
    cache = settings.cache_folder()
    if not embedded.is_fetched(cache):
        raise ModelError(f"model {EMBEDDED_MODEL} is not in {cache}", remedy="run `splitwire fetch` once")
    return Checkpoint(embedded.embedded_folder(cache))


def _converted_gguf(settings: ModelSettings, folder: Path, name: str) -> Checkpoint:
    file = folder / name
    if not file.is_file():
        raise ModelError(f"GGUF file {file} does not exist", remedy="check source and gguf_file")
    target = settings.cache_folder() / "converted" / _key([file])
    if not target.is_dir():
        from splitwire.backbone.convert import convert_gguf  # noqa: PLC0415 - slow to import, rarely needed

        convert_gguf(folder, name, target)
    return Checkpoint(target)


def _converted_folder(settings: ModelSettings, folder: Path) -> Checkpoint:
    files = sorted(folder.glob(_PYTORCH_PATTERN))
    if not files:
        raise ModelError(
            f"no weights in {folder}", remedy="the folder needs *.safetensors or pytorch_model*.bin, or set gguf_file"
        )
    target = settings.cache_folder() / "converted" / _key(files)
    if not target.is_dir():
        from splitwire.backbone.convert import convert_folder  # noqa: PLC0415 - slow to import, rarely needed

        convert_folder(folder, target)
    return Checkpoint(target)


def _from_hub(settings: ModelSettings) -> Path:
    """A hub repository through the hub's own cache; safetensors if it has them, else .bin files."""
    import huggingface_hub  # noqa: PLC0415 - local models need no hub client
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    def fetch(*patterns: str) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                settings.source, revision=settings.revision or None, allow_patterns=[*_HUB_PATTERNS, *patterns]
            )
        )

    try:
        if settings.gguf_file:
            return fetch(settings.gguf_file)
        folder = fetch(_SAFETENSORS_PATTERN)
        return folder if any(folder.glob(_SAFETENSORS_PATTERN)) else fetch(_PYTORCH_PATTERN)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model source {settings.source!r} is no folder here and not on the hub ({type(error).__name__})",
            remedy=f"check the path or the hub id, or use {EMBEDDED_MODEL} after `splitwire fetch`",
        ) from None


def _key(files: list[Path]) -> str:
    """Names a conversion by its source files: path, size and change time."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _indexed_files(index: Path) -> set[str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name) for name in weight_map.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{index} is not an index of weights ({type(error).__name__})", remedy="download it again"
        ) from None


def _read_header(file: Path) -> Iterator[StoredTensor]:
    try:
        # safetensors' own check of sizes, offsets and overlaps, before anything is read by them
        with safe_open(file, framework="pt"):
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(opened.read(length))
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"{file} is not a safetensors file ({type(error).__name__})", remedy="download it again"
        ) from None
    header.pop("__metadata__", None)
    base = _LENGTH_BYTES + length
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        yield StoredTensor(name, file, entry["dtype"], tuple(entry["shape"]), base + start, base + end)
