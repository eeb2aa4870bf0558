"""What a private run needs of the delegated layers' true output, computed once while the whole model is at hand.

For every block of the private text: the hidden rows before the delegated layers (so that a frozen head need not run
in every step), the rows after them (the distillation target), and the unsplit model's cross-entropy of each row (the
baseline of the utility gate). For the public text: the targets, on which the gradient clip is calibrated, and the
median norm of the rows at the cut. At run time the trusted node then holds head and tail only.

Kept as safetensors and JSON in a folder named by the hash of everything that it depends on: model, cut, weights of the
delegated layers, dtype, texts and block size. Another setting is another folder, so a stale result is never read. The
folder is written beside and renamed, so a result is whole or not there. It holds private activations: 0700 and 0600.

Shapes: N blocks, T positions, H hidden width.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from splitwire.backbone import ModelSettings, identity, load_config, load_head_and_tail, load_middle, load_tokenizer
from splitwire.backbone.parts import HeadModel, MiddleModel, TailModel
from splitwire.errors import RecordingError, SettingsError
from splitwire.private_files import make_private_folder, replace_private_file, sync_folder
from splitwire.settings import canonical_json, to_tree
from tln.training.corpus import Blocks, CorpusSettings, blocks_digest, check_corpus, make_blocks, read_documents
from tln.training.losses import token_losses
from tln.training.progress import Progress
from tln.training.settings import PrepareSettings, check_prepare

SCHEMA_VERSION = 3

_FACTS_FILE = "prepared.json"
_TENSORS_FILE = "prepared.safetensors"
_KEY_DIGITS = 24


@dataclass(frozen=True)
class Texts:
    """The blocks of both texts; `public` is None when the settings name no public text."""

    private: Blocks
    public: Blocks | None


@dataclass(frozen=True)
class Prepared:
    """`hidden` and `targets` [N, T, H] before and after the delegated layers and `baseline_nats` [N, T], of the private
    blocks; `public_targets` of the public ones or None.
    """

    folder: Path
    hidden: torch.Tensor
    targets: torch.Tensor
    baseline_nats: torch.Tensor
    public_targets: torch.Tensor | None
    facts: dict[str, Any]


def load_texts(model: ModelSettings, corpus: CorpusSettings, tokenizer: Any = None) -> Texts:
    """Reads both texts and cuts them in blocks with the model's tokenizer."""
    check_corpus(corpus)
    tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer

    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return tokens

    vocabulary_size = int(load_config(model).vocab_size)
    private = make_blocks(read_documents(Path(corpus.path), corpus.max_documents), encode, corpus)
    _check_vocabulary(private, vocabulary_size, corpus.path)
    if not corpus.public_path:
        return Texts(private, None)
    if Path(corpus.public_path).resolve() == Path(corpus.path).resolve():
        raise SettingsError(
            "corpus.public_path is the private text", remedy="name text that anyone may know, from another source"
        )
    public = make_blocks(read_documents(Path(corpus.public_path)), encode, corpus)
    _check_vocabulary(public, vocabulary_size, corpus.public_path)
    return Texts(private, _first(public, corpus.public_blocks))


def _check_vocabulary(blocks: Blocks, vocabulary_size: int, path: str) -> None:
    """The tokenizer and the weights can be of different models; then an id has no row in the embedding."""
    outside = int((blocks.tokens >= vocabulary_size).sum() + (blocks.labels[:, -1] >= vocabulary_size).sum())
    if outside:
        raise SettingsError(
            f"{outside} tokens of {path} are outside of the model's vocabulary of {vocabulary_size}",
            remedy="give the model the tokenizer that it was trained with",
        )


def prepare(
    model: ModelSettings, settings: PrepareSettings, texts: Texts, progress: Progress, dependencies: dict[str, Any]
) -> Prepared:
    """Runs the whole model over both texts and stores the result; gives a stored one when there is one.

    `dependencies` is what `dependencies_of` says.
    """
    check_prepare(settings)
    folder = prepared_folder(model, settings, dependencies)
    if not (folder / _FACTS_FILE).is_file():
        make_private_folder(folder.parent)
        beside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        try:
            _compute(beside, model, settings, texts, progress, dependencies)
            _rename(beside, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return _read(folder)


def load_prepared(model: ModelSettings, settings: PrepareSettings, dependencies: dict[str, Any]) -> Prepared:
    """The stored result; SettingsError when `tln prepare` did not run with these settings."""
    folder = prepared_folder(model, settings, dependencies)
    if not (folder / _FACTS_FILE).is_file():
        raise SettingsError(
            "nothing is prepared for this model, cut and text",
            remedy="run tln prepare with the same --config and --set options first",
        )
    return _read(folder)


def dependencies_of(model: ModelSettings, texts: Texts) -> dict[str, Any]:
    """Everything that the result depends on, as plain values. TLN only: it holds digests of private text."""
    delegated = identity(model)
    return {
        "schema_version": SCHEMA_VERSION,
        "source": model.source,
        "revision": model.revision,
        "gguf_file": model.gguf_file,
        "dtype": model.dtype,
        "family": delegated.family,
        "first_layer": delegated.first_layer,
        "last_layer": delegated.last_layer,
        "fingerprint": delegated.fingerprint,
        "private": blocks_digest(texts.private),
        "public": "" if texts.public is None else blocks_digest(texts.public),
    }


def prepared_folder(model: ModelSettings, settings: PrepareSettings, dependencies: dict[str, Any]) -> Path:
    """Where the result of these dependencies is or will be."""
    parent = Path(settings.cache_dir) if settings.cache_dir else model.cache_folder() / "prepared"
    return parent / _key(dependencies)[:_KEY_DIGITS]


def _key(dependencies: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(dependencies)).hexdigest()


@dataclass(frozen=True)
class _Parts:
    head: HeadModel
    middle: MiddleModel
    tail: TailModel


def _compute(
    folder: Path,
    model: ModelSettings,
    settings: PrepareSettings,
    texts: Texts,
    progress: Progress,
    dependencies: dict[str, Any],
) -> None:
    head, tail = load_head_and_tail(model)
    parts = _Parts(head, load_middle(model), tail)
    tensors = _run(parts, texts.private, settings.batch_blocks, progress, "private text")
    facts: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "settings_hash": _key(dependencies),
        "model": to_tree(model),
        "fingerprint": dependencies["fingerprint"],
        "num_blocks": len(texts.private),
        "num_documents": len(texts.private.ids),
        "num_tokens_left_out": texts.private.num_left_out,
        "baseline_nats": tensors["baseline_nats"].mean().item(),
    }
    if texts.public is not None:
        public = _run(parts, texts.public, settings.batch_blocks, progress, "public text")
        tensors["public_targets"] = public["targets"]
        norms = torch.linalg.vector_norm(public["hidden"].float(), dim=-1)
        facts["public_row_norm_median"], facts["public_row_norm_max"] = norms.median().item(), norms.max().item()
    make_private_folder(folder)
    try:
        replace_private_file(folder / _TENSORS_FILE, safetensors.torch.save(tensors))
        replace_private_file(folder / _FACTS_FILE, json.dumps(facts, indent=2, allow_nan=False).encode("ascii"))
    except OSError as error:
        raise RecordingError(
            f"what was prepared cannot be written to {folder.parent}: {error.strerror}",
            remedy="free the disk, or name another folder in prepare.cache_dir",
        ) from None


@torch.inference_mode()
def _run(parts: _Parts, blocks: Blocks, batch: int, progress: Progress, name: str) -> dict[str, torch.Tensor]:
    """Rows before and after the delegated layers [N, T, H], and the cross-entropy [N, T]."""
    progress.begin(f"whole model, {name}", len(blocks))
    rows, targets, losses = [], [], []
    for tokens, labels in _batches(blocks, batch):
        hidden = parts.head(tokens.to(parts.head.device))
        target = parts.middle(hidden)
        logits = parts.tail.logits(parts.tail(target))
        targets.append(target.cpu())
        losses.append(token_losses(logits, labels.to(logits.device)).cpu())
        rows.append(hidden.cpu())
        progress.advance(len(tokens))
    return {"hidden": torch.cat(rows), "targets": torch.cat(targets), "baseline_nats": torch.cat(losses)}


def _batches(blocks: Blocks, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for start in range(0, len(blocks), batch):
        yield blocks.tokens[start : start + batch], blocks.labels[start : start + batch]


def _rename(beside: Path, folder: Path) -> None:
    try:
        beside.rename(folder)
    except OSError:
        if not (folder / _FACTS_FILE).is_file():  # else another process was quicker with the same result
            raise
    sync_folder(folder.parent)


def _read(folder: Path) -> Prepared:
    try:
        facts = json.loads((folder / _FACTS_FILE).read_text(encoding="ascii"))
        tensors = safetensors.torch.load_file(folder / _TENSORS_FILE)
        rows = tensors["hidden"], tensors["targets"], tensors["baseline_nats"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise SettingsError(
            f"what was prepared in {folder} is not readable ({type(error).__name__})",
            remedy="remove that folder and run tln prepare again",
        ) from None
    return Prepared(folder, *rows, tensors.get("public_targets"), facts)


def _first(blocks: Blocks, count: int) -> Blocks:
    count = count or len(blocks)
    return Blocks(
        blocks.tokens[:count], blocks.labels[:count], blocks.documents[:count], blocks.ids, blocks.num_left_out
    )
