"""The fingerprint is a function of the delegated layers' weights as stored, and of nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from splitwire.backbone import ModelSettings, digest, fingerprint, identity

TinyModel = Callable[[str], Path]


@pytest.fixture(autouse=True)
def memo_for_small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny models are too small for the memo otherwise."""
    monkeypatch.setattr(digest, "_MEMO_MIN_BYTES", 0)


@pytest.fixture
def folder(tiny_model: TinyModel, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def of(folder: Path, first: int = 2, last: int = 4, cache: str = "cache") -> str:
    return fingerprint(
        ModelSettings(source=str(folder), first_layer=first, last_layer=last, cache_dir=str(folder.parent / cache))
    )


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_it_is_64_hex_digits_and_the_same_without_the_memo(folder: Path) -> None:
    value = of(folder)
    assert len(value) == 64
    assert int(value, 16) >= 0
    assert of(folder) == value
    assert of(folder, cache="other") == value


def test_small_layers_leave_no_memo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of(folder, cache="kept")
    assert len(list((folder.parent / "kept" / "fingerprints").iterdir())) == 1
    monkeypatch.setattr(digest, "_MEMO_MIN_BYTES", 64 << 20)
    of(folder, cache="none")
    assert not (folder.parent / "none").exists()


def test_one_changed_weight_inside_changes_it(folder: Path) -> None:
    before = of(folder)
    rewrite(folder, lambda tensors: tensors["model.layers.3.mlp.up_proj.weight"][0].neg_())
    assert of(folder) != before


def test_weights_outside_do_not_matter(folder: Path) -> None:
    """Head and tail may be fine-tuned locally, and the untrusted node does not see them."""
    before = of(folder)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in (
            "model.embed_tokens.weight",
            "model.layers.1.mlp.up_proj.weight",
            "model.layers.4.mlp.up_proj.weight",
        ):
            tensors[name].zero_()

    rewrite(folder, change)
    assert of(folder) == before


def test_other_layers_or_another_stored_dtype_change_it(folder: Path) -> None:
    values = {of(folder), of(folder, 1, 4), of(folder, 2, 5), of(folder, 1, 3)}
    rewrite(folder, lambda tensors: tensors.update({name: tensor.half() for name, tensor in tensors.items()}))
    values.add(of(folder))
    assert len(values) == 5


def test_equal_layers_at_another_place_differ(folder: Path) -> None:
    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".layers.2." in name]:
            tensors[name.replace(".layers.2.", ".layers.3.")] = tensors[name].clone()

    rewrite(folder, repeat)
    assert of(folder, 2, 3) != of(folder, 3, 4)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(folder: Path) -> None:
    (folder.parent / "file").write_text("in the way")
    assert of(folder, cache="file") == of(folder)


def test_identity_describes_the_delegated_part(folder: Path) -> None:
    settings = ModelSettings(source=str(folder), first_layer=2, last_layer=4, cache_dir=str(folder.parent))
    found = identity(settings)
    assert (found.family, found.first_layer, found.last_layer, found.hidden_width) == ("llama", 2, 4, 48)
    assert found.fingerprint == fingerprint(settings)
