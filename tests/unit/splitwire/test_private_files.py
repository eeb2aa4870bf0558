"""Private files are written whole or not at all, for their owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from splitwire import private_files
from splitwire.errors import PkiError


def test_a_new_file_is_its_owners_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        private_files.write_private_file(tmp_path / "a", b"one")
        private_files.replace_private_file(tmp_path / "b", b"two")
        private_files.make_private_folder(tmp_path / "c")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "abc"] == [0o600, 0o600, 0o700]


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    private_files.write_private_file(tmp_path / "a", b"one")
    with pytest.raises(PkiError, match="exists already"):
        private_files.write_private_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"


def test_a_new_file_that_cannot_be_written_whole_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a key or of a plan would pass for the whole."""

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PkiError, match=r"a cannot be written: No space left"):
        private_files.write_private_file(tmp_path / "a", b"one")
    with pytest.raises(OSError, match="No space left"):
        private_files.create_file(tmp_path / "b", b"two")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        private_files.replace_file(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_folder_or_file_that_cannot_be_made_is_told_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PkiError, match="file/x cannot be made"):
        private_files.make_private_folder(tmp_path / "file" / "x")
    with pytest.raises(PkiError, match="file/x cannot be written"):
        private_files.write_private_file(tmp_path / "file" / "x", b"")
    with pytest.raises(PkiError, match="none cannot be read: No such file"):
        private_files.read_file(tmp_path / "none")
