"""`tln train` against a real untrusted node: both stacks, recorded, sealed and scored."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitwire.bundles import TRUTH_FILE, RecordedFrame, Truth, open_bundle, read_truth, verify_bundle
from splitwire.errors import RecordingError, SettingsError, SplitwireError, StateError, UnavailableError
from splitwire.sealing import load_sealing_private_key, open_sealed, write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln.finetune import finetune
from tln.keys import FrameKeys, RunKey
from tln.prepare import dependencies_of, load_texts, prepare
from tln.progress import NoProgress
from tln.recording import RUN_KEY_FILE
from tln.report import Report
from tln.results_folder import REPORT_FILE, WEIGHTS_FILE
from tln.settings import TlnSettings

MARKER = "quokka-marker-2718"
NUM_DOCUMENTS = 15
BLOCK = 8

LATENT: dict[str, Any] = {
    "stack": {"kind": "gram"},
    "frame": {
        "mechanisms": ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"],
        "bottleneck": {"width": 8},
        "decoys": {"count": 12, "pool_size": 120},
    },
}
WIDE: dict[str, Any] = {
    "stack": {"kind": "transformer", "trainable": "full"},
    "frame": {
        "mechanisms": ["clip_noise", "decoys"],
        "clip_noise": {"clip_norm": 50.0, "noise_multiplier": 0.001},
        "decoys": {"count": 3, "pool_size": 8},
    },
    "loss": {"distillation": 0.0, "raw_distillation": 0.0},
}
OPEN = {"gradient": {"policy": "open", "unsafe": True}}
CLIPPED = {"gradient": {"policy": "clip_noise", "clip_multiple": 2.0}}


@dataclass
class Run:
    """A finished run and everything that it left."""

    report: Report
    settings: TlnSettings
    keys: Path
    defence: Mapping[str, Any]

    @property
    def bundle(self) -> Path:
        return Path(self.settings.record.folder)

    def truth(self) -> Truth:
        return read_truth(self.bundle / TRUTH_FILE, self.keys / "audit.key")

    def frames(self, hop: int) -> Iterator[RecordedFrame]:
        return open_bundle(self.bundle).frames(hop)


@pytest.fixture(scope="module")
def audit_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of one auditor."""
    folder = tmp_path_factory.mktemp("audit") / "keys"
    write_audit_keys(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A private text whose first document carries the marker, and a public one."""
    folder = tmp_path_factory.mktemp("texts")
    words = ["river", "stone", "walks", "green", "under", "seven", "small", "lamps"]
    for name, seed in (("private", 1), ("public", 2)):
        chosen = np.random.default_rng(seed).integers(len(words), size=(NUM_DOCUMENTS, 12))
        lines = [
            json.dumps({"id": f"{name}-{index}-{MARKER}", "text": f"{MARKER} {' '.join(words[word] for word in row)}"})
            for index, row in enumerate(chosen)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return {"path": str(folder / "private.jsonl"), "public_path": str(folder / "public.jsonl")}


@pytest.fixture
def settings_for(
    start_node: Callable[..., Any], pki: dict[str, TlsFiles], texts: dict[str, str], audit_keys: Path, tmp_path: Path
) -> Callable[..., TlnSettings]:
    """settings_for(LATENT, CLIPPED, ...) -> settings of a run against a fresh node, merged section by section."""

    def make(*layers: dict[str, Any]) -> TlnSettings:
        node = start_node()
        tree: dict[str, Any] = {
            "model": {"source": node.settings.model.source, "first_layer": 2, "last_layer": 4},
            "connection": {
                "address": node.settings.listen,
                "tls": {name: str(path) for name, path in vars(pki["tln"]).items()},
            },
            "corpus": {**texts, "block_tokens": BLOCK, "public_blocks": 4},
            "train": {"out": str(tmp_path / "out"), "steps": 4, "frames_per_step": 6, "max_evaluation_blocks": 6},
            "record": {
                "folder": str(tmp_path / "bundle"),
                "audit_key": str(audit_keys / "audit.pub"),
                "signing_key": str(audit_keys / "tln-recorder.key"),
            },
        }
        for layer in layers:
            for section, values in layer.items():
                tree[section] = {**tree.get(section, {}), **values}
        return build(TlnSettings, tree, "test")

    return make


@pytest.fixture
def run(settings_for: Callable[..., TlnSettings], audit_keys: Path) -> Callable[..., Run]:
    """run(LATENT, CLIPPED, ...) -> prepared, trained, recorded."""

    def make(*layers: dict[str, Any]) -> Run:
        settings = settings_for(*layers)
        _prepare(settings)
        announced: list[Mapping[str, Any]] = []
        return Run(finetune(settings, NoProgress(), announced.append), settings, audit_keys, announced[0])

    return make


def _prepare(settings: TlnSettings) -> None:
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
def test_a_run_leaves_a_signed_bundle_whose_truth_joins(run: Callable[..., Run], stack: dict[str, Any]) -> None:
    """Every FORWARD frame has its truth under its own digest, and the manifest covers truth and run key."""
    done = run(stack, CLIPPED)
    verified = verify_bundle(done.bundle, done.keys / "trust.json")
    assert verified.problems == []
    assert verified.is_complete
    assert verified.is_signed
    truth = done.truth()
    assert truth.is_complete
    forwards = list(done.frames(channels_pb2.HOP_FORWARD))
    assert len(forwards) == len(truth.records)
    for frame in forwards:
        record = truth.records[(frame.session_hash, frame.header.step)]
        assert record.forward_digest == frame.message_digest
        assert record.real.shape == tuple(frame.tensor.shape[:2])
    assert {record.phase for record in truth.records.values()} == {"train", "evaluate"}


def test_latent_frames_have_one_size_and_the_stated_decoys(run: Callable[..., Run]) -> None:
    """Evaluation on prefixes too: the number of real rows cannot be read from a frame's shape."""
    done = run(LATENT, CLIPPED)
    truth = done.truth()
    assert {tuple(frame.tensor.shape[1:]) for frame in done.frames(channels_pb2.HOP_FORWARD)} == {(BLOCK + 12, 8)}
    for record in truth.records.values():
        counts = set(record.real.sum(axis=1).tolist())
        assert counts == {BLOCK} if record.phase == "train" else len(counts) == 1


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
def test_an_open_gradient_shows_the_decoys_and_a_clipped_one_does_not(
    run: Callable[..., Run], stack: dict[str, Any]
) -> None:
    """Open: the rows that are exactly zero are exactly the decoys, in every frame."""
    done = run(stack, OPEN)
    truth, frames = done.truth(), list(done.frames(channels_pb2.HOP_BACKWARD))
    assert len(frames) == 4
    for frame in frames:
        nonzero = frame.tensor.any(dim=-1).numpy()
        assert np.array_equal(nonzero, truth.records[(frame.session_hash, frame.header.step)].real)
    assert done.defence["gradient"] == {"policy": "open", "unsafe": True}


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
def test_a_clipped_gradient_has_no_zero_row(run: Callable[..., Run], stack: dict[str, Any]) -> None:
    """Every row of every BACKWARD frame carries noise at the announced scale."""
    done = run(stack, CLIPPED)
    sigma = done.defence["gradient"]["sigma"]
    for frame in done.frames(channels_pb2.HOP_BACKWARD):
        assert frame.tensor.any(dim=-1).all()
        decoys = frame.tensor[~torch.from_numpy(done.truth().records[(frame.session_hash, frame.header.step)].real)]
        assert decoys.std().item() == pytest.approx(sigma, rel=0.1)


def test_the_documents_are_sealed_with_their_membership(run: Callable[..., Run]) -> None:
    """A fifth is held out; held-out documents never train, and are the only ones evaluated."""
    done = run(LATENT, CLIPPED)
    truth = done.truth()
    assert len(truth.documents) == NUM_DOCUMENTS
    assert sum(not document["member"] for document in truth.documents) == 3 == done.report.non_members
    members = np.array([document["member"] for document in truth.documents])
    for record in truth.records.values():
        assert (members[record.document[record.real]] == (record.phase == "train")).all()
        assert members[record.document[~record.real]].all()


def test_nothing_private_is_left_unsealed(run: Callable[..., Run]) -> None:
    """The planted marker, in text and ids, is in no file of the run; the run key opens for the auditor alone."""
    done = run(LATENT, CLIPPED)
    key = load_sealing_private_key(done.keys / "audit.key")
    secret = open_sealed((done.bundle / RUN_KEY_FILE).read_bytes(), key, "run-key")
    files = [*done.bundle.iterdir(), *Path(done.settings.train.out).iterdir()]
    assert len(files) >= 6
    for file in files:
        content = file.read_bytes()
        assert MARKER.encode() not in content, file.name
        assert secret not in content, file.name
        assert secret.hex().encode() not in content, file.name


def test_the_run_key_replays_the_noise(run: Callable[..., Run]) -> None:
    """An auditor with the run key finds the gradient noise of each step again: decoy rows are noise alone."""
    done = run(WIDE, CLIPPED)
    secret = open_sealed(
        (done.bundle / RUN_KEY_FILE).read_bytes(), load_sealing_private_key(done.keys / "audit.key"), "run-key"
    )
    frame = next(iter(done.frames(channels_pb2.HOP_BACKWARD)))
    keys = FrameKeys(RunKey(secret), frame.session_hash)
    noise = keys.stream(frame.header.step, "gradient-noise").gaussian_like(
        frame.tensor, done.defence["gradient"]["sigma"]
    )
    decoys = ~torch.from_numpy(done.truth().records[(frame.session_hash, frame.header.step)].real)
    assert torch.equal(frame.tensor[decoys], noise[decoys])


def test_training_lowers_the_loss_on_both_nodes(run: Callable[..., Run]) -> None:
    """Full training of the middle over the wire, head and tail trained here, tied weights too."""
    done = run(
        WIDE,
        OPEN,
        {"train": {"steps": 25, "learning_rate": 3e-3, "train_head": True, "train_tail": True, "warmup_steps": 3}},
    )
    history = done.report.history
    assert np.mean(history.loss[-5:]) < np.mean(history.loss[:5]) - 0.5
    assert done.report.utility.outcome == "passes"
    assert done.report.utility.delta_nats < 0


def test_the_report_is_numbers_with_the_effective_defence(run: Callable[..., Run]) -> None:
    """report.json tells settings, hash and defence, and what the bundle tells is the same."""
    done = run(LATENT, CLIPPED)
    report = json.loads((Path(done.settings.train.out) / "report.json").read_text())
    bundle = open_bundle(done.bundle)
    assert report["defence"] == bundle.settings["defence"] == done.defence
    assert report["settings_hash"] == bundle.settings["settings_hash"]
    assert list(report["defence"]["frame"]) == ["bottleneck", "clip", "decoys", "noise", "permutation", "rotation"]
    assert report["utility"]["num_documents"] == done.report.utility.num_documents
    assert len(report["loss_by_step"]) == 4


@pytest.mark.parametrize("defended", [LATENT, WIDE], ids=["latent", "wide"])
def test_the_ledger_charges_what_the_sealed_truth_says_crossed(
    defended: dict[str, Any], run: Callable[..., Run]
) -> None:
    """Rows, decoy reuse and gradient rows of the document charged most, counted again from the truth; no claim."""
    done = run(defended, CLIPPED)
    ledger = json.loads((Path(done.settings.train.out) / "report.json").read_text())["ledger"]
    counts = {name: np.zeros(len(done.truth().documents), dtype=np.int64) for name in ("real", "decoy", "gradient")}
    for record in done.truth().records.values():
        documents, real = record.document.ravel(), record.real.ravel()
        known = documents >= 0
        charged = {"real": known & real, "decoy": known & ~real, "gradient": known & (record.phase == "train")}
        for name, rows in charged.items():
            np.add.at(counts[name], documents[rows], 1)
    for name, rows in counts.items():
        assert ledger[f"most_{name}_rows_of_a_document"] == rows.max() > 0
    assert ledger["claim"] == "no DP claim"
    assert ledger["epsilon"] is None


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
    _prepare(settings)
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
    _prepare(settings)
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
    _prepare(settings)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "out", Path("/proc/out")):
        with pytest.raises(SplitwireError, match="out cannot be made"):
            finetune(replace(settings, train=replace(settings.train, out=str(out))), NoProgress(), lambda _: None)
    assert not Path(settings.record.folder).exists()


def test_a_refused_checkpoint_loses_nothing_here(settings_for: Callable[..., TlnSettings], audit_keys: Path) -> None:
    """The node keeps no checkpoints and says so after the last step: report, weights and bundle are whole by then."""
    settings = settings_for(LATENT, CLIPPED)
    settings = replace(settings, train=replace(settings.train, remote_checkpoint="trained"))
    _prepare(settings)
    with pytest.raises(StateError, match=f"keeps no checkpoints; what this node trained is in {settings.train.out}"):
        finetune(settings, NoProgress(), lambda _: None)
    assert sorted(file.name for file in Path(settings.train.out).iterdir()) == [REPORT_FILE, WEIGHTS_FILE]
    assert verify_bundle(Path(settings.record.folder), audit_keys / "trust.json").is_good


def test_a_full_disk_under_the_results_is_one_message(
    settings_for: Callable[..., TlnSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves no report that a reader could take for one."""
    settings = settings_for(LATENT, CLIPPED)
    _prepare(settings)

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tln.results_folder.replace_private_file", full)
    with pytest.raises(RecordingError, match="No space left on device"):
        finetune(settings, NoProgress(), lambda _: None)
    assert not Path(settings.train.out).exists()


def test_public_text_must_not_be_the_private_one(settings_for: Callable[..., TlnSettings]) -> None:
    """A clip calibrated on private gradients would tell about them."""
    settings = settings_for(LATENT, CLIPPED)
    same = replace(settings, corpus=replace(settings.corpus, public_path=settings.corpus.path))
    with pytest.raises(SettingsError, match="public_path is the private text"):
        load_texts(same.model, same.corpus)


QUIET = {"gradient": {"clip_norm": 10.0, "noise_multiplier": 1e-9}}
WHOLE_BLOCKS = {"frame": {**LATENT["frame"], "decoys": {"count": 2 * BLOCK, "pool_size": 120}}}


def _decoys(**values: Any) -> dict[str, Any]:
    return {"frame": {**LATENT["frame"], "decoys": {"count": 12, "pool_size": 120, **values}}}


@pytest.mark.parametrize("stack", [LATENT, WIDE], ids=["latent", "wide"])
@pytest.mark.parametrize("policy", ["matched", "replay"])
def test_decoys_that_bear_loss_have_gradients_as_long_as_real_ones(
    run: Callable[..., Run], stack: dict[str, Any], policy: str
) -> None:
    """With next to no noise, under which clip_noise would show every decoy, none is short; the truth joins."""
    done = run(stack, WHOLE_BLOCKS if stack is LATENT else {}, QUIET, {"gradient": {"policy": policy}})
    assert done.defence["gradient"]["policy"] == policy
    assert verify_bundle(done.bundle, done.keys / "trust.json").is_good
    truth, frames = done.truth(), list(done.frames(channels_pb2.HOP_BACKWARD))
    assert len(frames) == 4
    for frame in frames:
        norms = frame.tensor.norm(dim=-1)
        real = torch.from_numpy(truth.records[(frame.session_hash, frame.header.step)].real)
        assert 0 < real.sum() < real.numel()
        assert norms[~real].min() > 100 * done.defence["gradient"]["sigma"]
        assert 0.3 < norms[~real].median() / norms[real].median() < 3


def test_replayed_decoys_are_whole_training_blocks_with_their_context(run: Callable[..., Run]) -> None:
    """Each frame holds its block and two others, every position of each; the two are not real and train too."""
    done = run(LATENT, WHOLE_BLOCKS, {"gradient": {"policy": "replay"}})
    truth = done.truth()
    texts = load_texts(done.settings.model, done.settings.corpus).private
    blocks = {(int(document), *row) for row, document in zip(texts.tokens.tolist(), texts.documents, strict=True)}
    num_seen = 0
    for record in truth.records.values():
        if record.phase != "train":
            continue
        for real, order, token, document in zip(record.real, record.order, record.token, record.document, strict=True):
            assert real.sum() == BLOCK
            assert np.bincount(order, minlength=BLOCK).tolist() == [3] * BLOCK
            assert all(truth.documents[index]["member"] for index in document)
            for name in np.unique(document):
                rows = document == name
                if rows.sum() == BLOCK:  # else two blocks of one document are mixed in the frame's order
                    assert len(set(real[rows])) == 1
                    assert (name, *token[rows][np.argsort(order[rows])].tolist()) in blocks
                    num_seen += not real[rows].any()
    assert num_seen > 10
    assert len(done.report.history.loss) == 4


def test_a_varying_number_of_real_rows_shows_in_the_truth_alone(run: Callable[..., Run]) -> None:
    """Frames keep their size; rows that are not sent bear no loss, and what stands there is a decoy in the truth."""
    done = run(LATENT, _decoys(min_real_rows=3), OPEN)
    truth = done.truth()
    assert {tuple(frame.tensor.shape[1:]) for frame in done.frames(channels_pb2.HOP_FORWARD)} == {(BLOCK + 12, 8)}
    counts: set[int] = set()
    for frame in done.frames(channels_pb2.HOP_BACKWARD):
        record = truth.records[(frame.session_hash, frame.header.step)]
        assert np.array_equal(frame.tensor.any(dim=-1).numpy(), record.real)
        for real, order in zip(record.real, record.order, strict=True):
            assert sorted(order[real].tolist()) == list(range(real.sum()))
        counts |= set(record.real.sum(axis=1).tolist())
    assert counts <= set(range(3, BLOCK + 1))
    assert len(counts) > 2


@pytest.mark.parametrize("kind", ["reencoded", "published"])
def test_the_truth_names_every_kind_of_decoy(run: Callable[..., Run], kind: str) -> None:
    """An open gradient shows exactly the decoys that the truth names, and the kind is announced."""
    done = run(
        LATENT, _decoys(kind=kind), OPEN, {"frame": {**_decoys(kind=kind)["frame"], "unsafe": kind == "published"}}
    )
    assert done.defence["frame"]["decoys"]["kind"] == kind
    assert done.defence["frame"]["decoys"].get("unsafe", False) == (kind == "published")
    truth = done.truth()
    for frame in done.frames(channels_pb2.HOP_BACKWARD):
        record = truth.records[(frame.session_hash, frame.header.step)]
        assert np.array_equal(frame.tensor.any(dim=-1).numpy(), record.real)
        assert (record.real.sum(axis=1) == BLOCK).all()
        assert all(truth.documents[index]["member"] for index in record.document.flatten())


def test_a_text_too_small_to_replay_is_refused_before_anything_crosses(
    settings_for: Callable[..., TlnSettings],
) -> None:
    """Rather than the same block twice in a frame."""
    many = {"frame": {**WIDE["frame"], "decoys": {"count": 50, "pool_size": 100}}, "train": {"frames_per_step": 100}}
    settings = settings_for(WIDE, many, {"gradient": {"policy": "replay"}})
    _prepare(settings)
    with pytest.raises(SettingsError, match="too few to replay 50 beside 100 real"):
        finetune(settings, NoProgress(), lambda _: None)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ((LATENT, _decoys(pool_size=100_000)), r"decoys.pool_size is 100000 and the training text has \d+ rows"),
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
    _prepare(settings)
    with pytest.raises(SettingsError, match=named):
        finetune(settings, NoProgress(), lambda _: None)
    assert not Path(settings.record.folder).exists()
    assert not Path(settings.train.out).exists()


@pytest.mark.parametrize(
    "layers",
    [
        (LATENT, {"frame": {"mechanisms": [*LATENT["frame"]["mechanisms"], "mixup"], "mixup": {"pool_size": 60}}}),
        (LATENT, _decoys(kind="reencoded")),
        (LATENT, _decoys(min_real_rows=3)),
        (LATENT, WHOLE_BLOCKS, {"gradient": {"policy": "replay"}}),
        (LATENT, {"gradient": {"policy": "matched"}}),
    ],
    ids=["mixup", "reencoded", "varying", "replay", "matched"],
)
def test_adversaries_work_with_every_kind_of_frame_and_nothing_of_theirs_crosses(
    run: Callable[..., Run], layers: tuple[dict[str, Any], ...]
) -> None:
    """As many frames of the same shapes as without; the defence names them, the report has each of their steps."""
    adversaries = {"heads": ["token", "property", "reconstruction"], "mine_weight": 0.1, "gram_weight": 0.1}
    done = run(*layers, {"adversaries": {**adversaries, "warmup_steps": 1, "hidden_width": 16}})
    assert verify_bundle(done.bundle, done.keys / "trust.json").is_good
    assert done.defence["adversaries"]["heads"] == "property, reconstruction, token"
    assert "no certificate" in done.defence["adversaries"]["mine"]
    told = json.loads((Path(done.settings.train.out) / REPORT_FILE).read_text())["adversaries"]
    losses = {name for name in told if name != "seconds_a_step"}
    assert losses == {f"{name}_by_step" for name in ("token", "property", "reconstruction", "mine_nats", "gram_spread")}
    assert all(len(told[name]) == 4 and np.isfinite(told[name]).all() for name in losses)
    assert told["seconds_a_step"] > 0
    backward = [tuple(frame.tensor.shape) for frame in done.frames(channels_pb2.HOP_BACKWARD)]
    width = BLOCK + done.settings.frame.decoys.count
    assert backward == [(6, width, 8)] * 4
