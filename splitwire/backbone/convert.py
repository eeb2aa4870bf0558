"""Turns a checkpoint that cannot be read tensor by tensor (GGUF, pytorch_model.bin) into safetensors, once.

The converted folder appears by one rename: it is whole or absent. GGUF weights are dequantised to float32, bit for
bit what transformers gives. Nothing here unpickles: .bin files go through torch's weights-only reader.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from splitwire.errors import ModelError

_SMOLLM_PRE_TOKENIZER = "smollm"


def convert_gguf(folder: Path, gguf_file: str, target: Path) -> Path:
    """Writes weights, config and tokenizer of `folder`/`gguf_file` to the new folder `target`; gives `target`."""
    with _quiet(), _reading(f"GGUF file {gguf_file}"):
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    _forget_quantisation(model)
    if gguf_string(folder / gguf_file, "tokenizer.ggml.pre") == _SMOLLM_PRE_TOKENIZER:
        split_digits(tokenizer)
    return _write(target, model, tokenizer)


def convert_folder(folder: Path, target: Path) -> Path:
    """Writes a checkpoint folder without safetensors (pytorch_model.bin) to the new folder `target`; gives `target`."""
    with _quiet(), _reading(f"checkpoint {folder.name}"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False)
        tokenizer = _tokenizer_if_any(folder)
    return _write(target, model, tokenizer)


def gguf_string(file: Path, key: str) -> str:
    """A string value of a GGUF file's metadata; empty when it has no such key."""
    from gguf import GGUFReader  # noqa: PLC0415 - slow to import, needed for GGUF files only

    field = GGUFReader(file).get_field(key)
    return "" if field is None else str(field.contents())


def split_digits(tokenizer: Any) -> None:
    """Restores the pre-split of SmolLM tokenizers (each digit alone), which transformers' GGUF reader drops."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence  # noqa: PLC0415 - needed here only

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends well; a target that is there by then wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield work
        with contextlib.suppress(OSError):
            os.replace(work, target)  # noqa: PTH105 - fails on a non-empty target, which is what is wanted
        if not target.is_dir():
            raise ModelError(
                f"model cache {target} cannot be written", remedy="check the folder's permissions and space"
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(target: Path, model: Any, tokenizer: Any) -> Path:
    with _quiet(), new_folder(target) as work:
        model.save_pretrained(work)
        if tokenizer is not None:
            tokenizer.save_pretrained(work)
    return target


def _forget_quantisation(model: Any) -> None:
    """save_pretrained refuses a model that remembers its GGUF origin, though its weights are plain float32 by now."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    if model.generation_config is None:
        model.generation_config = GenerationConfig.from_model_config(model.config)


def _tokenizer_if_any(folder: Path) -> Any:
    names = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if not any((folder / name).exists() for name in names):
        return None
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' progress bars and other libraries' deprecations from our user."""
    bars: Any = transformers_logging
    had_progress_bar = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if had_progress_bar:
            bars.enable_progress_bar()


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """One error for the many that a foreign file can cause in transformers."""
    try:
        yield
    except Exception as error:
        raise ModelError(
            f"{what} cannot be read ({type(error).__name__})",
            remedy="check that the file is whole and of a family that transformers reads",
        ) from error
