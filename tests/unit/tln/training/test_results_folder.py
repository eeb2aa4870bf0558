"""The folder of a run's results belongs to one run until it ends, and goes when nothing came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitwire.errors import SettingsError
from tln.training.results_folder import results_folder


def test_a_second_run_is_refused_and_leaves_the_first_one_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with results_folder(folder):
        with pytest.raises(SettingsError, match="has not ended"), results_folder(folder):
            pytest.fail("two runs in one folder")
        (folder / "report.json").write_text("{}")
    assert [path.name for path in folder.iterdir()] == ["report.json"]


def test_a_run_that_fails_leaves_no_folder_unless_results_are_in_it(tmp_path: Path) -> None:
    empty, kept = tmp_path / "empty", tmp_path / "kept"
    with pytest.raises(ValueError, match="broken"), results_folder(empty):
        raise ValueError("broken")
    with pytest.raises(FileExistsError), results_folder(kept):  # noqa: PT012 - a run that fails after its results
        (kept / "report.json").write_text("{}")
        (kept / "report.json").touch(exist_ok=False)
    assert not empty.exists()
    assert [path.name for path in kept.iterdir()] == ["report.json"]
