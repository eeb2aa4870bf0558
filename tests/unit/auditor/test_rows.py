"""Rows of a view are put together in pieces, mapped, and equal to what one pass in memory gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from auditor import rows as module
from auditor.rows import RowStore, gather_scaled, scale_of


def _store(path: Path, width: int, seed: int) -> tuple[RowStore, np.ndarray]:
    values = np.random.default_rng(seed).normal(size=(500, width)).astype(np.float32) * 7
    values[::11] = 0
    store = RowStore(path)
    for start in range(0, 500, 123):
        store.append(values[start : start + 123])
    store.freeze()
    return store, values


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 24])
def test_pieces_make_the_rows_that_one_pass_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Bit for bit, both parts side by side, whatever the size of a piece."""
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "8"]
    for store, _ in stores:
        store.close()


def test_rows_without_any_length_stay_as_they_are() -> None:
    assert scale_of(np.zeros(3, np.float32), 16) == np.float32(4.0)
