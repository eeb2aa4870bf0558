"""A model folder with something broken in it ends in one ModelError that names the file or the number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitwire.backbone import (
    ModelSettings,
    load_config,
    load_generation_config,
    load_head_and_tail,
    load_middle,
    load_tokenizer,
    usable_device,
)
from splitwire.errors import ModelError

Change = Callable[[Path], object]


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder that the test may break."""
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def load_everything(folder: Path) -> None:
    """What the programs load, in the order in which `tln generate` does."""
    settings = ModelSettings(source=str(folder), first_layer=2, last_layer=4)
    load_tokenizer(settings)
    load_config(settings)
    load_head_and_tail(settings)
    load_middle(settings)
    load_generation_config(settings)


def write(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def set_config(**values: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (write("config.json", b'{"a":'), "model config in"),
        (write("config.json", b"\xff\x00\xfe"), "model config in"),
        (write("config.json", b"[1]"), "model config in"),
        (write("config.json", b"{}"), "model config in .* family: gemma3_text, gpt2, llama"),
        (lambda folder: (folder / "config.json").unlink(), "model config in"),
        (set_config(model_type="zebra"), "model config in .* family: gemma3_text, gpt2, llama"),
        (set_config(model_type="bert"), "family 'bert' is not supported"),
        (set_config(hidden_size="wide"), "model config in"),
        (set_config(hidden_size=64), "config says"),
        (set_config(num_hidden_layers=9), "says 9 layers, the weights have 6"),
        (set_config(num_hidden_layers=5), "says 5 layers, the weights have 6"),
        (set_config(num_hidden_layers=999_999), "says 999999 layers, the weights have 6"),
        (write("tokenizer.json", b"{"), "tokenizer in"),
        (write("tokenizer.json", b"[]"), "tokenizer in"),
        (write("generation_config.json", b"nope"), "generation_config.json cannot be read"),
        (write("model.safetensors", b""), "is not a safetensors file"),
        (write("model.safetensors", b"\xff" * 20_000), "is not a safetensors file"),
        (write("model.safetensors.index.json", b"nope"), "is not an index of weights"),
        (write("model.safetensors.index.json", b'{"weight_map": 3}'), "is not an index of weights"),
        (write("model.safetensors.index.json", b"[]"), "is not an index of weights"),
        (write("model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}'), "weights are missing"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_one_message_that_names_the_cause(folder: Path, change: Change, named: str) -> None:
    change(folder)
    with pytest.raises(ModelError, match=named):
        load_everything(folder)


def test_truncated_weights_are_noticed_before_they_are_read(folder: Path) -> None:
    """safetensors would read past the end of what is there."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50_000])
    with pytest.raises(ModelError, match="is not a safetensors file"):
        load_everything(folder)


@pytest.mark.parametrize("name", ["meta", "banana", "cuda:99", ""])
def test_a_device_that_cannot_compute_here_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="device"):
        usable_device(name)
