"""A source is found in every form it may have, single tensors are read from it, and what is missing is named."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from splitwire.backbone import ModelSettings, fingerprint, load_config, load_middle, load_tokenizer, load_whole
from splitwire.backbone.checkpoint import open_checkpoint
from splitwire.errors import ModelError

TinyModel = Callable[[str], Path]


def settings_of(source: Path, **fields: Any) -> ModelSettings:
    return ModelSettings(source=str(source), first_layer=2, last_layer=4, **fields)


@pytest.fixture
def copy_of(tiny_model: TinyModel, tmp_path: Path) -> Callable[[str], Path]:
    """copy_of(family) -> a folder that the test may change."""
    return lambda family: Path(shutil.copytree(tiny_model(family), tmp_path / "model"))


def weights_equal(first: ModelSettings, second: ModelSettings) -> bool:
    one, other = load_whole(first).state_dict(), load_whole(second).state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_sharded_checkpoints_are_read_by_their_index(tiny_model: TinyModel, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert weights_equal(settings_of(tmp_path), settings_of(tiny_model("llama")))
    assert fingerprint(settings_of(tmp_path)) == fingerprint(settings_of(tiny_model("llama")))


def test_a_part_opens_only_the_shards_of_its_own_layers(tiny_model: TinyModel, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(tiny_model("llama")).save_pretrained(tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    wanted = {file for name, file in index.items() if ".layers.2." in name or ".layers.3." in name}
    settings = settings_of(tmp_path)
    expected = load_middle(settings).state_dict()
    for file in set(index.values()) - wanted:
        blank = {name: torch.full_like(tensor, torch.nan) for name, tensor in load_file(tmp_path / file).items()}
        save_file(blank, tmp_path / file)
    actual = load_middle(settings).state_dict()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_pytorch_checkpoints_are_converted_once(tiny_model: TinyModel, copy_of: Any, tmp_path: Path) -> None:
    folder = copy_of("llama")
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    settings = settings_of(folder, cache_dir=str(tmp_path / "cache"))
    assert weights_equal(settings, settings_of(tiny_model("llama")))
    converted = open_checkpoint(settings).folder
    stamp = (converted / "model.safetensors").stat().st_mtime_ns
    assert load_tokenizer(settings).encode("a") == load_tokenizer(settings_of(tiny_model("llama"))).encode("a")
    assert (open_checkpoint(settings).folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in converted.parent.iterdir()] == [converted.name], "no half-written folder is left"


def test_pickled_code_in_a_checkpoint_is_refused(copy_of: Any, tmp_path: Path) -> None:
    folder = copy_of("llama")
    (folder / "model.safetensors").unlink()
    target = tmp_path / "touched"

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (target,))

    torch.save({"model.norm.weight": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read"):
        load_middle(settings_of(folder, cache_dir=str(tmp_path / "cache")))
    assert not target.exists()


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_checkpoint(tiny_model: TinyModel, copy_of: Any, prefix: str) -> None:
    folder = copy_of("gemma3_text")
    tensors = {
        f"{prefix}{name.removeprefix('model.')}": tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file({**tensors, "vision_tower.weight": torch.zeros(2)}, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert load_config(settings_of(folder)).model_type == "gemma3_text"
    assert weights_equal(settings_of(folder), settings_of(tiny_model("gemma3_text")))
    assert fingerprint(settings_of(folder)) == fingerprint(settings_of(tiny_model("gemma3_text")))


def test_base_model_checkpoints_without_a_prefix(tiny_model: TinyModel, copy_of: Any) -> None:
    """As GPT-2 lies on the hub."""
    folder = copy_of("gpt2")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    assert weights_equal(settings_of(folder), settings_of(tiny_model("gpt2")))


def test_what_is_missing_is_named(copy_of: Any, tmp_path: Path) -> None:
    folder = copy_of("mistral")
    tensors = load_file(folder / "model.safetensors")
    lost = "model.layers.3.mlp.up_proj.weight"
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=lost):
        load_middle(settings_of(folder))
    save_file(
        {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, folder / "model.safetensors"
    )
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load_whole(settings_of(folder))


def test_weights_of_another_shape_than_the_config_are_refused(copy_of: Any) -> None:
    folder = copy_of("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 80}))
    with pytest.raises(ModelError, match=r"\(96, 48\), the config says \(80, 48\)"):
        load_middle(settings_of(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model_type": "opt"}, "'opt' is not supported"), ({"model_type": "no-such-thing"}, "cannot be read")],
)
def test_other_families_are_refused_with_the_list(copy_of: Any, change: dict[str, str], message: str) -> None:
    folder = copy_of("llama")
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **change}))
    with pytest.raises(ModelError, match=message) as caught:
        load_middle(settings_of(folder))
    assert "family" in str(caught.value)


def test_attention_scaled_by_layer_number_cannot_be_cut(copy_of: Any) -> None:
    folder = copy_of("gpt2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "scale_attn_by_inverse_layer_idx": True}))
    with pytest.raises(ModelError, match="scale_attn_by_inverse_layer_idx"):
        load_middle(settings_of(folder))


def test_sources_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    for source, fields, message in (
        ("no/such-model-anywhere", {}, "not on the hub"),
        ("/no/such/folder", {}, "not on the hub"),
        (str(tmp_path), {}, "no weights"),
        (str(tmp_path), {"gguf_file": "x.gguf"}, "does not exist"),
    ):
        with pytest.raises(ModelError, match=message):
            load_config(settings_of(Path(source), **fields))
    with pytest.raises(ModelError, match="splitwire fetch"):
        load_config(ModelSettings(cache_dir=str(tmp_path)))


def test_damaged_files_are_refused(copy_of: Any, tmp_path: Path) -> None:
    folder = copy_of("llama")
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"\xff" * 64, b""):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ModelError, match="not a safetensors file"):
            load_middle(settings_of(folder))
    (tmp_path / "bad.gguf").write_bytes(b"GGUF nonsense")
    with pytest.raises(ModelError, match="GGUF"):
        load_middle(settings_of(tmp_path / "bad.gguf", cache_dir=str(tmp_path / "cache")))
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_devices_that_are_not_there_are_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelError, match="device 'warp'"):
        load_middle(settings_of(tiny_model("llama"), device="warp"))
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="not available"):
            load_middle(settings_of(tiny_model("llama"), device="cuda"))


def test_a_tokenizer_without_padding_pads_with_its_end_token(copy_of: Any) -> None:
    folder = copy_of("llama")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(settings_of(folder))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_other_safetensors_beside_the_model_are_left_alone(tiny_model: TinyModel, copy_of: Any) -> None:
    """Mistral's hub folders hold a second copy under other names, and adapters lie beside models."""
    folder = copy_of("mistral")
    save_file({"model.layers.0.mlp.up_proj.weight": torch.zeros(1)}, folder / "consolidated.safetensors")
    assert weights_equal(settings_of(folder), settings_of(tiny_model("mistral")))


def test_code_beside_a_checkpoint_never_runs(copy_of: Any, tmp_path: Path) -> None:
    folder = copy_of("llama")
    target = tmp_path / "touched"
    (folder / "custom.py").write_text(f"import pathlib; pathlib.Path({str(target)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    for change in (
        {"auto_map": {"AutoConfig": "custom.Config"}},
        {"auto_map": {"AutoConfig": "custom.Config"}, "model_type": "custom"},
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with contextlib.suppress(ModelError):
            load_middle(settings_of(folder))
        assert not target.exists()
