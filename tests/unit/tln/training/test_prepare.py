"""What `tln prepare` keeps: the whole model's own numbers, whole or not at all, and never a stale one."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitwire.backbone import ModelSettings, load_config, load_head_and_tail, load_whole
from splitwire.errors import RecordingError, SettingsError
from tln.pipeline import FramePipeline
from tln.training.calibration import median_gradient_norm
from tln.training.corpus import CorpusSettings
from tln.training.losses import LossSettings, token_losses
from tln.training.prepare import Prepared, Texts, dependencies_of, load_prepared, load_texts, prepare, prepared_folder
from tln.training.progress import NoProgress
from tln.training.settings import PrepareSettings

MARKER = "wombat-marker-1618"


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSettings:
    """A tiny model cut at layers 2 and 4, with a cache of its own."""
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path / "cache"))
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusSettings:
    """Three private documents and one public."""
    for name, count in (("private", 3), ("public", 1)):
        (tmp_path / name).mkdir()
        for index in range(count):
            (tmp_path / name / f"{index}.txt").write_text(f"{MARKER} {name} {index} " * 2)
    return CorpusSettings(path=str(tmp_path / "private"), public_path=str(tmp_path / "public"), block_tokens=8)


def _prepare(model: ModelSettings, corpus: CorpusSettings) -> tuple[Texts, Prepared]:
    texts = load_texts(model, corpus)
    return texts, prepare(model, PrepareSettings(), texts, NoProgress(), dependencies_of(model, texts))


def test_targets_and_baseline_are_those_of_the_unsplit_model(model: ModelSettings, corpus: CorpusSettings) -> None:
    """Hidden rows before and after the delegated layers and every row's cross-entropy, at rtol 1e-4."""
    texts, prepared = _prepare(model, corpus)
    with torch.no_grad():
        output = load_whole(model)(texts.private.tokens, output_hidden_states=True)
    assert torch.allclose(prepared.hidden, output.hidden_states[2], rtol=1e-4, atol=1e-5)
    assert torch.allclose(prepared.targets, output.hidden_states[4], rtol=1e-4, atol=1e-5)
    expected = token_losses(output.logits, texts.private.labels)
    assert torch.allclose(prepared.baseline_nats, expected, rtol=1e-4, atol=1e-5)
    assert prepared.public_targets is not None
    assert len(prepared.public_targets) == len(texts.public or ())


def test_a_second_time_reads_what_is_there(model: ModelSettings, corpus: CorpusSettings) -> None:
    """Nothing is computed twice."""
    _, first = _prepare(model, corpus)
    before = (first.folder / "prepared.safetensors").stat().st_mtime_ns
    _, again = _prepare(model, corpus)
    assert again.folder == first.folder
    assert (first.folder / "prepared.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("position", [0, 8], ids=["first token", "last label"])
def test_a_token_outside_of_the_vocabulary_is_refused(
    model: ModelSettings, corpus: CorpusSettings, position: int
) -> None:
    """The tokenizer of another model; the message counts and shows no text."""
    size = int(load_config(model).vocab_size)

    def foreign(_text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [size if index == position else 1 for index in range(9)]}

    with pytest.raises(SettingsError, match=f"3 tokens of .*private are outside of the model's vocabulary of {size}"):
        load_texts(model, corpus, foreign)


def test_other_settings_are_another_result(model: ModelSettings, corpus: CorpusSettings) -> None:
    """Text, block size, cut and dtype each lead to a folder of their own, so nothing stale is ever read."""
    texts = load_texts(model, corpus)
    others = [
        (model, replace(corpus, block_tokens=9)),
        (model, replace(corpus, max_documents=2)),
        (replace(model, last_layer=5), corpus),
        (replace(model, dtype="bf16"), corpus),
    ]
    folders = {prepared_folder(model, PrepareSettings(), dependencies_of(model, texts))}
    for other_model, other_corpus in others:
        dependencies = dependencies_of(other_model, load_texts(other_model, other_corpus))
        folders.add(prepared_folder(other_model, PrepareSettings(), dependencies))
    assert len(folders) == 5


def test_nothing_prepared_is_an_error_with_the_remedy(model: ModelSettings, corpus: CorpusSettings) -> None:
    """Training does not run the whole model by itself."""
    with pytest.raises(SettingsError, match="tln prepare"):
        load_prepared(model, PrepareSettings(), dependencies_of(model, load_texts(model, corpus)))


def test_an_interrupted_preparation_leaves_nothing(model: ModelSettings, corpus: CorpusSettings) -> None:
    """No folder that passes for whole, and none beside it."""

    class Interrupted(NoProgress):
        def advance(self, count: int = 1, note: str = "") -> None:
            raise KeyboardInterrupt(count, note)

    texts = load_texts(model, corpus)
    dependencies = dependencies_of(model, texts)
    with pytest.raises(KeyboardInterrupt):
        prepare(model, PrepareSettings(), texts, Interrupted(), dependencies)
    assert not list((model.cache_folder() / "prepared").iterdir())


def test_a_full_disk_leaves_nothing_and_names_the_folder(
    model: ModelSettings, corpus: CorpusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder can be moved by a setting, so the message says which one is full."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tln.training.prepare.replace_private_file", fail)
    with pytest.raises(RecordingError, match=r"prepared: No space left on device\. .*prepare\.cache_dir"):
        _prepare(model, corpus)
    assert not list((model.cache_folder() / "prepared").iterdir())


@pytest.mark.parametrize("name", ["prepared.json", "prepared.safetensors"])
def test_a_damaged_result_is_refused_by_its_folder(model: ModelSettings, corpus: CorpusSettings, name: str) -> None:
    """Cut in half, as a disk that was full leaves it."""
    _, prepared = _prepare(model, corpus)
    file = prepared.folder / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(SettingsError, match=f"{prepared.folder} is not readable .* run tln prepare again"):
        _prepare(model, corpus)


def test_the_result_is_private_and_holds_no_text(model: ModelSettings, corpus: CorpusSettings) -> None:
    """Folder 0700, files 0600, the facts are numbers and hashes."""
    _, prepared = _prepare(model, corpus)
    assert stat.S_IMODE(prepared.folder.stat().st_mode) == 0o700
    for file in prepared.folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert MARKER.encode() not in file.read_bytes()
    assert json.loads((prepared.folder / "prepared.json").read_text())["num_documents"] == 3


def test_the_calibration_is_the_median_of_the_true_gradients(model: ModelSettings, corpus: CorpusSettings) -> None:
    """On the transformer stack: the gradient at the delegated layers' true output, as autograd of the whole has it."""
    texts, prepared = _prepare(model, corpus)
    whole = load_whole(model)
    public = texts.public
    assert public is not None
    captured = {}
    layer = whole.model.layers[3]
    handle = layer.register_forward_hook(lambda _m, _i, output: captured.update(rows=output) or output.retain_grad())
    logits = whole(public.tokens).logits
    handle.remove()
    token_losses(logits, public.labels).mean(dim=1).sum().backward()
    expected = captured["rows"].grad.norm(dim=-1).median().item()

    head, tail = load_head_and_tail(model)
    loss = LossSettings(distillation=0.0, raw_distillation=0.0)
    found = median_gradient_norm(head, tail, FramePipeline(), public, prepared.public_targets, loss, is_latent=False)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_calibration_needs_public_text(model: ModelSettings, corpus: CorpusSettings) -> None:
    """Never a clip from private gradients."""
    texts, prepared = _prepare(model, replace(corpus, public_path=""))
    assert texts.public is None
    assert prepared.public_targets is None

    head, tail = load_head_and_tail(model)
    with pytest.raises(SettingsError, match="public text"):
        median_gradient_norm(head, tail, FramePipeline(), None, None, LossSettings(), is_latent=False)
