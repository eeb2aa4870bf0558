"""Reads the folder that `datasets` writes with `save_to_disk`: state.json, and Arrow streams with the rows.

Only pyarrow is needed for it (`pip install splitwire[datasets]`), neither the package `datasets` nor pickle. Rows need
a column `text`; a column `id` names them, else their number does.

Refused: a folder of several splits (name one of them), a missing or foreign column, an empty text cell, a file named
outside of the folder. Error texts name columns and row numbers, never text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from splitwire.errors import SettingsError

STATE_FILE = "state.json"
SPLITS_FILE = "dataset_dict.json"


def is_dataset_folder(path: Path) -> bool:
    """Whether `datasets` saved something there."""
    return (path / STATE_FILE).is_file() or (path / SPLITS_FILE).is_file()


def read_dataset(path: Path) -> Iterator[tuple[str, str]]:
    """Id and text of every row, in the order of the files."""
    if not (path / STATE_FILE).is_file():
        names = ", ".join(sorted(entry.name for entry in path.iterdir() if (entry / STATE_FILE).is_file()))
        raise SettingsError(f"{path} holds several splits", remedy=f"name the folder of one of them: {names or 'none'}")
    number = 0
    for file in _data_files(path):
        for batch in _batches(file):
            for name, text in _rows(batch, path):
                if not isinstance(text, str) or name in {None, ""}:
                    raise SettingsError(f"{path} row {number} has no text or no id", remedy="leave such rows out")
                yield str(number if name is _NO_ID else name), text
                number += 1


_NO_ID = object()


def _rows(batch: Any, path: Path) -> Iterator[tuple[object, object]]:
    names = batch.schema.names
    if "text" not in names:
        raise SettingsError(
            f"{path} has columns {', '.join(map(repr, names))} and none named 'text'", remedy="rename the text's column"
        )
    texts = batch.column("text").to_pylist()
    return zip(batch.column("id").to_pylist() if "id" in names else [_NO_ID] * len(texts), texts, strict=True)


def _data_files(path: Path) -> list[Path]:
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingsError(
            f"{path / STATE_FILE} does not name the files of a dataset", remedy="save it again with save_to_disk"
        ) from None
    if any(Path(name).name != name for name in names):
        raise SettingsError(f"{path / STATE_FILE} names a file outside", remedy="save it again with save_to_disk")
    return [path / name for name in names]


def _batches(file: Path) -> Iterator[Any]:
    try:
        import pyarrow as arrow  # noqa: PLC0415 - optional, and only for such a folder
    except ImportError:
        raise SettingsError(
            f"{file.parent} is a dataset folder and pyarrow is not installed",
            remedy="pip install 'splitwire[datasets]', or save the text as .jsonl",
        ) from None
    try:
        with arrow.OSFile(str(file)) as source, arrow.ipc.open_stream(source) as batches:
            yield from batches
    except (OSError, arrow.ArrowInvalid):
        raise SettingsError(
            f"{file} is not a readable Arrow stream", remedy="save it again with save_to_disk"
        ) from None
