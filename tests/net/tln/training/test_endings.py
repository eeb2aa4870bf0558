"""Runs that cannot begin, or break: one clear error, and nothing that passes for whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitwire.bundles import verify_bundle
from splitwire.errors import RecordingError, SettingsError, SplitwireError, StateError, UnavailableError
from tests.net.tln.training.runs import (
    CLIPPED,
    LATENT,
    WIDE,
    prepared,
    with_decoys,
)
from tln.settings import TlnSettings
from tln.training.finetune import finetune
from tln.training.prepare import load_texts
from tln.training.progress import NoProgress
from tln.training.results_folder import REPORT_FILE, WEIGHTS_FILE


def test_a_used_folder_and_a_missing_preparation_are_refused_before_anything_crosses(
    settings_for: Callable[..., TlnSettings],
) -> None:
    """One clear message each, and no half-written results."""
    settings = settings_for(LATENT, CLIPPED, {"prepare": {"cache_dir": "/nonexistent/prepared"}})
    with pytest.raises(SettingsError, match="run tln prepare"):
        finetune(settings, NoProgress(), lambda _: None)
    Path(settings.train.out).mkdir()
    (Path(settings.train.out) / "x").touch()
    with pytest.raises(SettingsError, match="not empty"):
        finetune(settings, NoProgress(), lambda _: None)
    assert not Path(settings.record.folder).exists()


def test_a_run_that_breaks_leaves_nothing_that_passes_for_whole(
    settings_for: Callable[..., TlnSettings], audit_keys: Path
) -> None:
    """The bundle says that it is incomplete, and no report is there."""

    class Breaks(NoProgress):
        def advance(self, count: int = 1, note: str = "") -> None:
            if count and note:
                raise RecordingError("the disk is full", remedy="free space")

    settings = settings_for(LATENT, CLIPPED)
    prepared(settings)
    with pytest.raises(RecordingError):
        finetune(settings, Breaks(), lambda _: None)
    assert not verify_bundle(Path(settings.record.folder), audit_keys / "trust.json").is_complete
    assert not Path(settings.train.out).exists()


@pytest.mark.parametrize("wire", [True, False])
def test_a_node_that_is_not_there_leaves_no_folder_in_the_way(
    settings_for: Callable[..., TlnSettings], wire: bool
) -> None:
    """No session was opened, so the same command can be given again once the node serves."""
    settings = settings_for(LATENT, CLIPPED, {"record": {"wire": wire}})
    if not wire:
        settings = replace(settings, record=replace(settings.record, signing_key=""))
    prepared(settings)
    nobody = replace(settings.connection, address="127.0.0.1:1", connect_timeout_seconds=0.5)
    with pytest.raises(UnavailableError):
        finetune(replace(settings, connection=nobody), NoProgress(), lambda _: None)
    assert not Path(settings.record.folder).exists()
    assert not Path(settings.train.out).exists()
    finetune(settings, NoProgress(), lambda _: None)


def test_a_folder_that_cannot_hold_the_results_is_refused_before_anything_crosses(
    settings_for: Callable[..., TlnSettings], tmp_path: Path
) -> None:
    """Not after the last step, when there is a run to lose."""
    settings = settings_for(LATENT, CLIPPED)
    prepared(settings)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "out", Path("/proc/out")):
        with pytest.raises(SplitwireError, match="out cannot be made"):
            finetune(replace(settings, train=replace(settings.train, out=str(out))), NoProgress(), lambda _: None)
    assert not Path(settings.record.folder).exists()


def test_a_refused_checkpoint_loses_nothing_here(settings_for: Callable[..., TlnSettings], audit_keys: Path) -> None:
    """The node keeps no checkpoints and says so after the last step: report, weights and bundle are whole by then."""
    settings = settings_for(LATENT, CLIPPED)
    settings = replace(settings, train=replace(settings.train, remote_checkpoint="trained"))
    prepared(settings)
    with pytest.raises(StateError, match=f"keeps no checkpoints; what this node trained is in {settings.train.out}"):
        finetune(settings, NoProgress(), lambda _: None)
    assert sorted(file.name for file in Path(settings.train.out).iterdir()) == [REPORT_FILE, WEIGHTS_FILE]
    assert verify_bundle(Path(settings.record.folder), audit_keys / "trust.json").is_good


def test_a_full_disk_under_the_results_is_one_message(
    settings_for: Callable[..., TlnSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves no report that a reader could take for one."""
    settings = settings_for(LATENT, CLIPPED)
    prepared(settings)

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tln.training.results_folder.replace_private_file", full)
    with pytest.raises(RecordingError, match="No space left on device"):
        finetune(settings, NoProgress(), lambda _: None)
    assert not Path(settings.train.out).exists()


def test_public_text_must_not_be_the_private_one(settings_for: Callable[..., TlnSettings]) -> None:
    """A clip calibrated on private gradients would tell about them."""
    settings = settings_for(LATENT, CLIPPED)
    same = replace(settings, corpus=replace(settings.corpus, public_path=settings.corpus.path))
    with pytest.raises(SettingsError, match="public_path is the private text"):
        load_texts(same.model, same.corpus)


def test_a_text_too_small_to_replay_is_refused_before_anything_crosses(
    settings_for: Callable[..., TlnSettings],
) -> None:
    """Rather than the same block twice in a frame."""
    many = {"frame": {**WIDE["frame"], "decoys": {"count": 50, "pool_size": 100}}, "train": {"frames_per_step": 100}}
    settings = settings_for(WIDE, many, {"gradient": {"policy": "replay"}})
    prepared(settings)
    with pytest.raises(SettingsError, match="too few to replay 50 beside 100 real"):
        finetune(settings, NoProgress(), lambda _: None)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ((LATENT, with_decoys(pool_size=100_000)), r"decoys.pool_size is 100000 and the training text has \d+ rows"),
        (
            (LATENT, {"train": {"public_steps": 2}}),
            r"decoys.pool_size is 120 and the public text has 32 rows",  # 4 public blocks of 8
        ),
        ((LATENT, {"frame": {**LATENT["frame"], "bottleneck": {"width": 49}}}), "width is 49 .* rows have 48 values"),
        ((LATENT, {"corpus": {"canary_prefix": "no-such"}}), "canary_prefix is 'no-such' and no document"),
    ],
    ids=["pool", "public pool", "width", "canaries"],
)
def test_what_the_text_or_the_model_cannot_give_is_refused_before_anything_crosses(
    settings_for: Callable[..., TlnSettings], layers: tuple[dict[str, Any], ...], named: str
) -> None:
    """A pool larger than its text would repeat rows in a frame; a bottleneck wider than the model is none."""
    settings = settings_for(*layers, CLIPPED)
    prepared(settings)
    with pytest.raises(SettingsError, match=named):
        finetune(settings, NoProgress(), lambda _: None)
    assert not Path(settings.record.folder).exists()
    assert not Path(settings.train.out).exists()
