"""A cut is a pair of layer numbers or fractions, and impossible ones are refused by number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from splitwire.backbone import ModelSettings, default_cache_folder
from splitwire.errors import ModelError
from splitwire.settings import build, load_settings


@pytest.mark.parametrize(
    ("first", "last", "num_layers", "expected"),
    [
        (5, 25, 30, (5, 25)),
        (0.2, 0.8, 30, (6, 24)),
        (0.2, 0.8, 6, (1, 5)),
        (1, 0.5, 12, (1, 6)),
        (0.5, 29, 30, (15, 29)),
    ],
)
def test_layer_numbers_and_fractions(first: float, last: float, num_layers: int, expected: tuple[int, int]) -> None:
    assert ModelSettings(first_layer=first, last_layer=last).layer_range(num_layers) == expected


@pytest.mark.parametrize(
    ("first", "last"), [(0, 3), (-1, 3), (2, 6), (2, 7), (3, 3), (4, 2), (0.01, 3), (2, 0.99), (1.0, 3), (2, 1.5)]
)
def test_impossible_cuts_are_refused_by_number(first: float, last: float) -> None:
    with pytest.raises(ModelError) as caught:
        ModelSettings(first_layer=first, last_layer=last).layer_range(6)
    assert any(str(value) in caught.value.message for value in (first, last))
    assert caught.value.remedy


def test_numbers_stay_numbers_and_fractions_stay_fractions_through_files(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text("first_layer = 5\nlast_layer = 0.5\n")
    settings = load_settings(ModelSettings, program="tln", file=file, environment={})
    assert isinstance(settings.first_layer, int)
    assert settings.layer_range(30) == (5, 15)
    assert isinstance(build(ModelSettings, {"last_layer": 20}, "test").last_layer, int)


def test_cache_folder_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path / "variable"))
    assert default_cache_folder() == tmp_path / "variable"
    assert ModelSettings().cache_folder() == tmp_path / "variable"
    assert ModelSettings(cache_dir=str(tmp_path)).cache_folder() == tmp_path
    monkeypatch.delenv("SPLITWIRE_CACHE")
    assert default_cache_folder() == Path.home() / ".cache" / "splitwire"


def test_importing_the_package_does_not_load_torch() -> None:
    """Command lines set thread counts before torch loads, and --help must be quick."""
    code = "import sys, splitwire.backbone, splitwire.cli.fetch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
