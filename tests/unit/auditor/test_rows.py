"""Rows of a view are put together in pieces, mapped, and equal to what one pass in memory gives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from auditor.attacks.parts import row_source
from auditor.attacks.parts.gaussian_classes import fit_classes
from auditor.attacks.parts.row_source import RowsOf, pieces
from auditor.evidence import rows as module
from auditor.evidence.rows import RowStore, copy_rows, gather_mapped, gather_scaled, mapped_rows, scale_of, take_rows
from splitwire.errors import RecordingError


def _store(path: Path, width: int, seed: int) -> tuple[RowStore, np.ndarray]:
    values = np.random.default_rng(seed).normal(size=(500, width)).astype(np.float32) * 7
    values[::11] = 0
    store = RowStore(path)
    for start in range(0, 500, 123):
        store.append(values[start : start + 123])
    store.freeze()
    return store, values


@pytest.fixture
def always_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are."""
    monkeypatch.setattr(module, "_SMALLEST_FILE_BYTES", 1)


@pytest.mark.usefixtures("always_mapped")
@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 24])
def test_pieces_make_the_rows_that_one_pass_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Bit for bit, both parts side by side, whatever the size of a piece; so are rows as they crossed, and copies."""
    monkeypatch.setattr(module, "_PIECE_BYTES", piece_bytes)
    stores = [_store(tmp_path / str(width), width, width) for width in (8, 5)]
    numbers = np.random.default_rng(1).permutation(500)[:301].astype(np.int64)
    found = gather_scaled([(store, numbers) for store, _ in stores])
    expected = []
    for _, values in stores:
        rows = values[numbers]
        norms = np.linalg.norm(rows, axis=1)
        expected.append(rows * np.float32(np.sqrt(rows.shape[1]) / float(np.median(norms[norms > 0]))))
    assert np.array_equal(found, np.concatenate(expected, axis=1))
    assert isinstance(found, np.memmap)
    plain = gather_mapped(stores[0][0], numbers)
    assert np.array_equal(plain, stores[0][1][numbers])
    assert np.array_equal(take_rows(plain, numbers[numbers < 301]), plain[numbers[numbers < 301]])
    changed = copy_rows(plain)
    changed[0] += 1
    assert np.array_equal(plain, stores[0][1][numbers])
    assert np.array_equal(changed[1:], plain[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "8"]
    for store, _ in stores:
        store.close()


def test_rows_without_any_length_stay_as_they_are() -> None:
    assert scale_of(np.zeros(3, np.float32), 16) == np.float32(4.0)


@pytest.mark.usefixtures("always_mapped")
def test_a_full_disk_shows_when_room_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a signal when a page is written."""

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RecordingError, match="No space left"):
        mapped_rows((10, 10))


@pytest.mark.parametrize("piece_values", [1, 700, 1 << 21])
def test_rows_in_pieces_are_those_side_by_side(monkeypatch: pytest.MonkeyPatch, piece_values: int) -> None:
    """And classes fitted to them are those of all rows at once."""
    monkeypatch.setattr(row_source, "_PIECE_VALUES", piece_values)
    generator = np.random.default_rng(3)
    first, second = (torch.from_numpy(generator.normal(size=(400, width))).float() for width in (6, 3))
    numbers = torch.from_numpy(generator.permutation(400)[:333])
    rows = RowsOf((first, second), numbers, torch.tanh)
    whole = torch.cat([first, second], dim=1)[numbers].tanh()
    assert torch.equal(torch.cat([part for _, part in pieces(rows)]), whole)
    labels = torch.from_numpy(generator.integers(0, 4, 333))
    for spherical in (False, True):
        found = fit_classes(rows, labels, 4, spherical=spherical)
        monkeypatch.setattr(row_source, "_PIECE_VALUES", 1 << 30)
        expected = fit_classes(whole, labels, 4, spherical=spherical)
        monkeypatch.setattr(row_source, "_PIECE_VALUES", piece_values)
        assert torch.allclose(found.logits(whole, 1.0), expected.logits(whole, 1.0), rtol=1e-4, atol=1e-4)
