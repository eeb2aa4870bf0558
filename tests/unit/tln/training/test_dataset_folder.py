"""Folders that `datasets` saved are texts like any other; what they lack is told by name and number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from splitwire.errors import SettingsError
from tln.training.corpus import Document, read_documents

arrow = pytest.importorskip("pyarrow")
MARKER = "wombat-marker-1618"


def _save(folder: Path, *shards: dict[str, list[Any]]) -> Path:
    """A folder as `Dataset.save_to_disk` lays it out: a stream a shard, named in state.json."""
    folder.mkdir(parents=True)
    names = [f"data-{index:05d}-of-{len(shards):05d}.arrow" for index in range(len(shards))]
    for name, columns in zip(names, shards, strict=True):
        table = arrow.table(columns)
        with arrow.OSFile(str(folder / name), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_rows_of_all_shards_are_documents_in_order(tmp_path: Path) -> None:
    """Other columns are left alone; a limit is kept."""
    folder = _save(
        tmp_path / "set",
        {"id": ["a", "b", "c"], "text": ["one", "two", "three"], "label": [0, 1, 0]},
        {"id": ["d"], "text": ["four"], "label": [1]},
    )
    assert read_documents(folder) == [
        Document("a", "one"),
        Document("b", "two"),
        Document("c", "three"),
        Document("d", "four"),
    ]
    assert len(read_documents(folder, max_documents=2)) == 2


def test_rows_without_ids_are_numbered_through(tmp_path: Path) -> None:
    """Over all shards, so that no two documents share a name; numbers as ids are taken too."""
    folder = _save(tmp_path / "plain", {"text": ["one", "two"]}, {"text": ["three"]})
    assert [document.id for document in read_documents(folder)] == ["0", "1", "2"]
    assert read_documents(_save(tmp_path / "numbers", {"id": [7], "text": ["one"]})) == [Document("7", "one")]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"body": [MARKER]}, "columns 'body' and none named 'text'"),
        ({"id": ["a", "b"], "text": [MARKER, None]}, "row 1 has no text or no id"),
        ({"id": ["a", None], "text": [MARKER, MARKER]}, "row 1 has no text or no id"),
        ({"id": ["a", "a"], "text": [MARKER, MARKER]}, "two documents have the same id"),
        ({"text": [1, 2]}, "row 0 has no text"),
        ({"text": arrow.array([], arrow.string())}, "holds no document"),
    ],
)
def test_what_is_wrong_is_named_and_never_shown(tmp_path: Path, columns: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named) as refused:
        read_documents(_save(tmp_path / "set", columns))
    assert MARKER not in str(refused.value)


def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """Several splits, a torn stream, a missing file, a state without files, and a file outside of the folder."""
    _save(tmp_path / "sets" / "train", {"text": ["one"]})
    (tmp_path / "sets" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(SettingsError, match="several splits") as refused:
        read_documents(tmp_path / "sets")
    assert "train" in (refused.value.remedy or "")
    folder = _save(tmp_path / "torn", {"text": ["one " * 100] * 3})
    (file,) = folder.glob("*.arrow")
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(SettingsError, match="not a readable Arrow stream"):
        read_documents(folder)
    file.unlink()
    with pytest.raises(SettingsError, match="not a readable Arrow stream"):
        read_documents(folder)
    for state, named in (("[]", "does not name the files"), ('{"_data_files": [{"filename": "../x"}]}', "outside")):
        (folder / "state.json").write_text(state)
        with pytest.raises(SettingsError, match=named):
            read_documents(folder)
