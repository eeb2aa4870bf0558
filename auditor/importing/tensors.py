"""Files with named tensors, read in slices: safetensors, npz, and pt files that hold nothing but tensors.

Nothing is loaded whole. safetensors and pt files are mapped into memory; so are the members of an npz file that are
stored as they are. Compressed members are unpacked into a temporary folder first. Never pickle: an npz member of
objects is refused, and a pt file is loaded with weights_only.
"""

from __future__ import annotations

import contextlib
import lzma
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray

from splitwire.errors import RecordingError, SettingsError

_LOCAL_HEADER = struct.Struct("<26xHH")
_FORMATS = ".safetensors, .npz or .pt"
_BROKEN = (safetensors.SafetensorError, zipfile.BadZipFile, struct.error, EOFError)
# Of a member: bytes that do not decompress (OSError is how bz2 says so), a method or password that is not had, a header
# that is none.
_BROKEN_MEMBER = (ValueError, TypeError, zlib.error, lzma.LZMAError, OSError, NotImplementedError, RuntimeError)
_MOST_BYTES = {"c": 16}  # of a number, 8 but for complex ones: torch knows no longer ones
Index = tuple[slice, ...]


class TensorFile(Protocol):
    """Named tensors. KeyError for a name that is not there."""

    def names(self) -> list[str]:
        """Every name."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of a tensor, without reading it."""
        ...

    def read(self, name: str, index: Index) -> torch.Tensor:
        """A part of a tensor: one slice a dimension."""
        ...


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """The tensors of a file, by its ending. SettingsError when it is not what its ending says."""
    if not path.is_file():
        raise SettingsError(f"{path} is no file", remedy=f"give a {_FORMATS} file")
    with contextlib.ExitStack() as stack:
        try:
            tensors = _open(path, stack)
        except _BROKEN as error:
            raise _unreadable(path, type(error).__name__) from None
        yield tensors


def _open(path: Path, stack: contextlib.ExitStack) -> TensorFile:
    if path.suffix == ".safetensors":
        return _Safetensors(stack.enter_context(safetensors.safe_open(path, framework="pt")))
    if path.suffix == ".npz":
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="splitwire-import-"))
        return _Arrays(_load_npz(path, Path(folder)))
    if path.suffix == ".pt":
        return _Tensors(_load_pt(path))
    raise SettingsError(f"{path} has the ending {path.suffix!r}", remedy=f"give a {_FORMATS} file")


class _Safetensors:
    def __init__(self, file: Any) -> None:
        self._file = file

    def names(self) -> list[str]:
        return sorted(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, index: Index) -> torch.Tensor:
        found: torch.Tensor = self._slice(name)[index]
        return found

    def _slice(self, name: str) -> Any:
        if name not in self._file.keys():  # noqa: SIM118 - not a dictionary
            raise KeyError(name)
        return self._file.get_slice(name)


class _Tensors:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str, index: Index) -> torch.Tensor:
        return self._tensors[name][index]


class _Arrays:
    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def names(self) -> list[str]:
        return sorted(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._arrays[name].shape)

    def read(self, name: str, index: Index) -> torch.Tensor:
        part = self._arrays[name][index]
        return torch.from_numpy(np.array(part, dtype=part.dtype.newbyteorder("="), order="C"))


def _load_pt(path: Path) -> dict[str, torch.Tensor]:
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001 - whatever the restricted reader of torch raises on foreign bytes
        raise _unreadable(path, type(error).__name__) from None
    if not isinstance(tree, dict):
        raise _unreadable(path, f"it holds a {type(tree).__name__} and no dictionary of tensors")
    try:
        return dict(_flat(tree, ""))
    except RecursionError:
        raise _unreadable(path, "its dictionaries are nested without an end") from None


def _flat(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Dense tensors with values by dotted key; whatever else is left out."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor) and _is_dense(value):
            yield f"{prefix}{key}", value


def _is_dense(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_nested or value.is_quantized or value.is_meta)


def _load_npz(path: Path, folder: Path) -> dict[str, NDArray[Any]]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for number, member in enumerate(archive.infolist()):
            name = member.filename.removesuffix(".npy")
            try:
                arrays[name] = _member(path, archive, member, folder / f"{number}.npy")
            except _BROKEN_MEMBER as error:
                raise _unreadable(path, f"member {name}: {error}") from None
    return arrays


def _member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, unpacked: Path) -> NDArray[Any]:
    with archive.open(member) as stream:
        shape, is_fortran, dtype = _header(stream)
        length = stream.tell()
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.kind not in "biufc" or dtype.itemsize > _MOST_BYTES.get(dtype.kind, 8):
        raise ValueError(f"it holds {dtype} and no numbers that torch has")
    if member.file_size != length + dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"its size does not fit its shape {list(shape)}")
    if member.compress_type != zipfile.ZIP_STORED:
        _unpack(path, archive, member, unpacked)
        return np.asarray(np.load(unpacked, mmap_mode="r", allow_pickle=False))
    with path.open("rb") as file:
        file.seek(member.header_offset)
        begin = member.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size)))
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", begin + length, shape, "F" if is_fortran else "C")


def _unpack(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, unpacked: Path) -> None:
    with archive.open(member) as stream, unpacked.open("wb") as file:
        while piece := stream.read(1 << 20):
            try:
                file.write(piece)
            except OSError as error:
                raise RecordingError(
                    f"{path} cannot be unpacked into {unpacked.parent}: {error.strerror}",
                    remedy="let TMPDIR name a folder with more room, or save without compression",
                ) from None


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    return shape, is_fortran, dtype


def _unreadable(path: Path, why: str) -> SettingsError:
    return SettingsError(f"{path} cannot be read as {path.suffix}: {why}", remedy=f"give a whole {_FORMATS} file")
