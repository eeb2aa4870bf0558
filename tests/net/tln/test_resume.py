"""A run that goes on from its checkpoints, over the real wire: what crosses again, and what must not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitwire.bundles import TRUTH_FILE, open_bundle, read_truth
from splitwire.errors import HandshakeError, RecordingError, SettingsError, StateError
from splitwire.sealing import write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tests.net.tln.training.runs import charged_rows
from tln.adversaries import AdversarySettings
from tln.context import NO_DOCUMENT
from tln.mechanisms.decoys import DecoySettings
from tln.mechanisms.mixup import MixupSettings
from tln.replay import replay as replay_bundle
from tln.settings import TlnSettings
from tln.training.checkpoints import JOURNAL_FILE, KEY_FILE, STATE_FILE
from tln.training.finetune import finetune
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress
from tln.training.report import Report
from tln.training.results_folder import REPORT_FILE, WEIGHTS_FILE
from tln.training.resume import Resume

FORWARD = channels_pb2.HOP_FORWARD
STEPS, EVERY, BREAK_AFTER = 8, 3, 5
BLOCK = 8


class Breaks(NoProgress):
    """Ends the run from the inside after some training steps, without a chance to tidy up."""

    def __init__(self, after: int) -> None:
        self._left = after
        self._task = ""

    def begin(self, task: str, total: int) -> None:  # noqa: ARG002 - the seam
        self._task = task

    def advance(self, count: int = 1, note: str = "") -> None:
        if "training" in self._task and note:
            self._left -= count
            if not self._left:
                raise KeyboardInterrupt


@pytest.fixture
def settings(start_node: Callable[..., Any], pki: dict[str, TlsFiles], tmp_path: Path) -> TlnSettings:
    """A recorded run on the latent stack, against a node that keeps checkpoints."""
    node = start_node(checkpoint_dir=tmp_path / "ucn")
    write_audit_keys(tmp_path / "keys")
    for name in ("private", "public"):
        lines = [
            json.dumps({"id": f"{name}-{index}", "text": f"{name} text number {index} about walking home. " * 2})
            for index in range(8)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    tree = {
        "model": {"source": node.settings.model.source, "first_layer": 2, "last_layer": 4},
        "connection": {
            "address": node.settings.listen,
            "tls": {name: str(path) for name, path in vars(pki["tln"]).items()},
        },
        "stack": {"kind": "gram"},
        "frame": {
            "mechanisms": ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"],
            "bottleneck": {"width": 8},
            "decoys": {"count": 12, "pool_size": 120},
        },
        "gradient": {"clip_multiple": 2.0},
        "corpus": {
            "path": str(tmp_path / "private.jsonl"),
            "public_path": str(tmp_path / "public.jsonl"),
            "block_tokens": BLOCK,
        },
        "train": {
            "out": str(tmp_path / "out"),
            "steps": STEPS,
            "frames_per_step": 4,
            "max_evaluation_blocks": 2,
            "checkpoint_every": EVERY,
        },
        "record": {"folder": str(tmp_path / "first"), "audit_key": str(tmp_path / "keys" / "audit.pub")},
    }
    built = build(TlnSettings, tree, "test")
    texts = load_texts(built.model, built.corpus)
    prepare(built.model, built.prepare, texts, NoProgress(), dependencies_of(built.model, texts))
    return built


def _break_off(settings: TlnSettings, after: int = BREAK_AFTER) -> None:
    with pytest.raises(KeyboardInterrupt):
        finetune(settings, Breaks(after), lambda _: None)


def _go_on(settings: TlnSettings, folder: str, resume: Resume = "same_noise") -> Report:
    record = replace(settings.record, folder=str(Path(settings.record.folder).with_name(folder)))
    return finetune(replace(settings, record=record), NoProgress(), lambda _: None, resume=resume)


def _forwards(folder: Path) -> dict[int, str]:
    return {frame.header.step: frame.message_digest for frame in open_bundle(folder).frames(FORWARD)}


def test_steps_taken_again_are_the_same_bytes_and_a_segment_tells_their_scope(
    settings: TlnSettings, tmp_path: Path
) -> None:
    """Two sessions, two bundles, one run: frames of the same step are equal, and none is missing."""
    _break_off(settings)
    assert sorted(path.name for path in tmp_path.joinpath("out").iterdir()) == [STATE_FILE, KEY_FILE, JOURNAL_FILE]
    report = _go_on(settings, "second")
    first, second = _forwards(tmp_path / "first"), _forwards(tmp_path / "second")
    again = first.keys() & second.keys()
    assert len(again) == BREAK_AFTER - EVERY
    assert all(first[step] == second[step] for step in again)
    assert len(report.history.loss) == STEPS
    (scope,) = {frame.session_hash for frame in open_bundle(tmp_path / "first").frames(FORWARD)}
    assert open_bundle(tmp_path / "second").settings["key_scope"] == scope != report.session_hash
    assert sorted(path.name for path in tmp_path.joinpath("out").iterdir()) == [REPORT_FILE, WEIGHTS_FILE]
    assert list(tmp_path.joinpath("ucn").rglob("*.safetensors")) == []


def test_the_ledger_of_a_resumed_run_counts_every_frame_once(settings: TlnSettings, tmp_path: Path) -> None:
    """Counted again from both sealed truths, where a step that crossed twice is one release."""
    _break_off(settings)
    ledger = _go_on(settings, "second").ledger
    truths = [read_truth(tmp_path / name / TRUTH_FILE, tmp_path / "keys" / "audit.key") for name in ("first", "second")]
    by_step = {record.step: record for truth in truths for record in truth.records.values()}
    counts = charged_rows(by_step.values(), len(truths[0].documents))
    for name, rows in counts.items():
        assert ledger[f"most_{name}_rows_of_a_document"] == rows.max() > 0
    assert not any("fresh noise" in reason for reason in ledger["reasons"])


def test_adversaries_and_mixup_go_on_as_they_were(settings: TlnSettings, tmp_path: Path) -> None:
    """They shape every later frame, so their state is in the checkpoint: frames taken again are the same bytes."""
    frame = replace(settings.frame, mechanisms=(*settings.frame.mechanisms, "mixup"), mixup=MixupSettings(pool_size=60))
    adversaries = AdversarySettings(
        heads=("token", "reconstruction"), mine_weight=0.5, gram_weight=0.5, warmup_steps=1, hidden_width=16
    )
    pressed = replace(settings, frame=frame, adversaries=adversaries)
    _break_off(pressed)
    report = _go_on(pressed, "second")
    first, second = _forwards(tmp_path / "first"), _forwards(tmp_path / "second")
    again = first.keys() & second.keys()
    assert len(again) == BREAK_AFTER - EVERY
    assert all(first[step] == second[step] for step in again)
    assert len(report.adversaries["token_by_step"]) == STEPS


@pytest.mark.parametrize(
    ("policy", "decoys"),
    [
        ("matched", DecoySettings(count=12, pool_size=120, min_real_rows=3)),
        ("replay", DecoySettings(count=16, pool_size=120)),
        ("clip_noise", DecoySettings(count=12, pool_size=120, kind="published")),
        ("clip_noise", DecoySettings(count=12, pool_size=120, kind="reencoded")),
    ],
    ids=["matched", "replay", "published", "reencoded"],
)
def test_decoys_and_what_they_bear_go_on_as_they_were(
    settings: TlnSettings, tmp_path: Path, policy: Any, decoys: DecoySettings
) -> None:
    """Pools of rows and of gradients are in the checkpoint, and blocks are drawn by step: the same bytes both ways."""
    frame = replace(settings.frame, decoys=decoys, unsafe=decoys.kind == "published")
    changed = replace(settings, frame=frame, gradient=replace(settings.gradient, policy=policy))
    _break_off(changed)
    _go_on(changed, "second")
    for hop in (FORWARD, channels_pb2.HOP_BACKWARD):
        first, second = (
            {frame.header.step: frame.message_digest for frame in open_bundle(tmp_path / name).frames(hop)}
            for name in ("first", "second")
        )
        again = first.keys() & second.keys()
        assert len(again) == BREAK_AFTER - EVERY
        assert all(first[step] == second[step] for step in again)


@pytest.mark.parametrize("kind", ["mixup", "reencoded", "matched", "adversaries"])
def test_whatever_keeps_something_from_step_to_step_is_in_the_checkpoint(
    settings: TlnSettings, tmp_path: Path, kind: str
) -> None:
    """Pools, gradients and adversaries: frames of steps taken again are equal."""
    frame = settings.frame
    if kind == "mixup":
        mixup = replace(frame.mixup, pool_size=60)
        settings = replace(settings, frame=replace(frame, mechanisms=(*frame.mechanisms, "mixup"), mixup=mixup))
    elif kind == "reencoded":
        settings = replace(settings, frame=replace(frame, decoys=replace(frame.decoys, kind="reencoded")))
    elif kind == "matched":
        gradient = replace(settings.gradient, policy="matched", clip_multiple=0.0)
        settings = replace(settings, gradient=gradient)
    else:
        settings = replace(settings, adversaries=replace(settings.adversaries, heads=("token",), warmup_steps=1))
    _break_off(settings)
    _go_on(settings, "second")
    first, second = _forwards(tmp_path / "first"), _forwards(tmp_path / "second")
    assert len(first.keys() & second.keys()) == BREAK_AFTER - EVERY
    assert all(first[step] == second[step] for step in first.keys() & second.keys())


def test_other_bytes_under_the_old_noise_never_cross(settings: TlnSettings, tmp_path: Path) -> None:
    """The run stops before that frame; with fresh noise it goes on, and no frame is one of the first time."""
    _break_off(settings)
    journal = tmp_path / "out" / JOURNAL_FILE
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(f"{line.rsplit(' ', 1)[0]} {'0' * 64}" for line in lines) + "\n")
    with pytest.raises(StateError, match="has other bytes under the same noise"):
        _go_on(settings, "refused")
    assert _forwards(tmp_path / "refused") == {}
    report = _go_on(settings, "fresh", "fresh_noise")
    first, fresh = _forwards(tmp_path / "first"), _forwards(tmp_path / "fresh")
    assert not set(first.values()) & set(fresh.values())
    assert first.keys() & fresh.keys()
    assert len(report.history.loss) == STEPS
    assert "key_scope" not in open_bundle(tmp_path / "fresh").settings


def test_a_checkpoint_that_is_not_the_one_saved_there_is_refused(settings: TlnSettings, tmp_path: Path) -> None:
    """A node whose disk was put back would train on from other weights."""
    _break_off(settings)
    (file,) = tmp_path.joinpath("ucn").rglob("*.safetensors")
    other = tmp_path / "elsewhere"
    _break_off(replace(settings, train=replace(settings.train, out=str(other)), record=type(settings.record)()))
    (swapped,) = set(tmp_path.joinpath("ucn").rglob("*.safetensors")) - {file}
    file.write_bytes(swapped.read_bytes())
    with pytest.raises(HandshakeError, match="not the one that this run saved"):
        _go_on(settings, "second")


def test_a_damaged_checkpoint_is_refused_before_anything_crosses(settings: TlnSettings, tmp_path: Path) -> None:
    """Cut, emptied, or one bit of a weight or of the run key changed: one message, and nothing is trained on it."""
    _break_off(settings)
    for name, damage in (
        (STATE_FILE, lambda content: content[: len(content) // 2]),
        (STATE_FILE, lambda content: content[:0]),
        (STATE_FILE, lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]),
        (KEY_FILE, lambda content: content[:16]),
        (KEY_FILE, lambda content: bytes([content[0] ^ 1]) + content[1:]),
    ):
        file = tmp_path / "out" / name
        whole = file.read_bytes()
        file.write_bytes(damage(whole))
        with pytest.raises(RecordingError, match=r"is not readable|was changed after it was written"):
            _go_on(settings, "second")
        file.write_bytes(whole)
    assert not (tmp_path / "second").exists()
    _go_on(settings, "second")


def test_only_the_same_run_is_resumed(settings: TlnSettings, tmp_path: Path) -> None:
    """Other settings, another text, no checkpoint, and a folder in use each end in one message before anything."""
    with pytest.raises(SettingsError, match="holds no checkpoint"):
        _go_on(settings, "second")
    _break_off(settings)
    with pytest.raises(SettingsError, match="is not empty"):
        finetune(settings, NoProgress(), lambda _: None)
    with pytest.raises(SettingsError, match="settings or texts are not those of the checkpoint"):
        _go_on(replace(settings, train=replace(settings.train, learning_rate=0.5)), "second")
    text = Path(settings.corpus.path)
    text.write_text(text.read_text().replace("home", "away"))
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
    with pytest.raises(SettingsError, match="settings or texts are not those of the checkpoint"):
        _go_on(settings, "second")
    assert not (tmp_path / "second").exists()


def test_progress_tells_loss_utility_speed_and_bytes(settings: TlnSettings) -> None:
    """Of private steps all four, and the bytes only grow; of public ones no utility, which is about private text."""
    notes: list[str] = []

    class Listens(NoProgress):
        def advance(self, count: int = 1, note: str = "") -> None:  # noqa: ARG002 - the seam
            notes.extend([note] if note else [])

    finetune(replace(settings, train=replace(settings.train, public_steps=2)), Listens(), lambda _: None)
    pattern = re.compile(r"loss [\d.]+, (utility [+-][\d.]+ nats, )?\d+ tokens/s, ([\d.]+) MB crossed")
    told = [pattern.fullmatch(note) for note in notes]
    assert len(told) == 2 + STEPS
    assert [bool(match and match.group(1)) for match in told] == [False] * 2 + [True] * STEPS
    crossed = [float(match.group(2)) for match in told if match]
    assert crossed == sorted(crossed)
    assert crossed[-1] > crossed[0] > 0


def test_public_steps_come_first_and_only_public_text_is_in_their_frames(settings: TlnSettings, tmp_path: Path) -> None:
    """Resuming in the middle of the public phase goes on with it; the report keeps both phases apart."""
    public = replace(settings, train=replace(settings.train, public_steps=4))
    _break_off(public, after=2)
    report = _go_on(public, "second")
    assert (len(report.history.public_loss), len(report.history.loss)) == (4, STEPS)
    keys = tmp_path / "keys" / "audit.key"
    records = [
        record
        for folder in ("first", "second")
        for record in read_truth(tmp_path / folder / TRUTH_FILE, keys).records.values()
        if record.phase == "train"
    ]
    of_public = [bool(np.all(record.document[record.real] == NO_DOCUMENT)) for record in records]
    assert of_public == [True] * (2 + 4) + [False] * STEPS
    assert not np.any(records[6].document[records[6].real] == NO_DOCUMENT)


def test_gauges_of_a_run_that_went_on_come_off_in_both_bundles(settings: TlnSettings, tmp_path: Path) -> None:
    """The second session's gauges are those of the first one's streams; the bundle tells them."""
    _break_off(settings)
    _go_on(settings, "second")
    for folder in ("first", "second"):
        report = replay_bundle(tmp_path / folder, key=tmp_path / "keys" / "audit.key")
        assert report.gauges == ("permutation", "rotation")
        assert report.is_order_checked
        assert report.num_joined == report.num_frames["FORWARD"] >= BREAK_AFTER
        assert [problem.partition(":")[0] for problem in report.problems] == (
            ["manifest.json is missing"] if folder == "first" else []
        )
