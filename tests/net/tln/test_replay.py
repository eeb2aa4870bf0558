"""`tln replay` on bundles of real runs: the gauges come off as the trusted node took them off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner, Result

from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.evidence.ungauged import opened_ungauged
from auditor.plan import Plan
from auditor.tap import Tap, TapSettings
from splitwire.errors import BundleError, SealError, SettingsError
from splitwire.sealing import load_sealing_public_key, seal, write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from tln.cli import app
from tln.context import ProtectedFrame, StepContext
from tln.keys import RunKey
from tln.mechanisms.gauge import Gauge
from tln.recording import RUN_KEY_FILE, RUN_KEY_PURPOSE
from tln.replay import replay
from tln.settings import TlnSettings
from tln.training.finetune import finetune
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress

STEPS = 3
GAUGED = ["bottleneck", "clip_noise", "decoys", "permutation", "scale_sign", "rotation"]


@dataclass
class Seen:
    """What the trusted node had, by (step, hop): rows before and after the gauges, as they were in its memory."""

    rows: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        protect, restore = Gauge.protect, Gauge.restore

        def watched_protect(gauge: Gauge, frame: ProtectedFrame, context: StepContext) -> ProtectedFrame:
            if gauge.name == "permutation":
                self._keep(context.step, "forward", frame.rows)
            return protect(gauge, frame, context)

        def watched_restore(gauge: Gauge, rows: torch.Tensor, context: StepContext) -> torch.Tensor:
            restored = restore(gauge, rows, context)
            if gauge.name == "permutation":
                self._keep(context.step, "return", restored)
            return restored

        monkeypatch.setattr(Gauge, "protect", watched_protect)
        monkeypatch.setattr(Gauge, "restore", watched_restore)

    def _keep(self, step: int, hop: str, rows: torch.Tensor) -> None:
        self.rows[step, hop] = rows.detach().clone()
        if rows.requires_grad:
            gradient_hop = "input_gradient" if hop == "forward" else "backward"
            rows.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self.rows.__setitem__((step, gradient_hop), gradient.detach().clone())
            )


@dataclass
class Run:
    """A recorded run, its auditor's keys, and what the trusted node had in memory."""

    bundle: Path
    keys: Path
    seen: Seen
    config: Path


@pytest.fixture
def run(
    start_node: Callable[..., Any], pki: dict[str, TlsFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    """run(names, **sections) -> a finished run over the gram stack with these mechanisms."""

    def make(
        names: list[str],
        topology: str = "",
        num_nodes: int = 1,
        through: Callable[[str], str] = lambda address: address,
        **sections: dict[str, Any],
    ) -> Run:
        node, *others = [start_node() for _ in range(num_nodes)]
        if topology:
            addresses = [other.settings.listen for other in others]
            sections["topology"] = {"kind": topology, "addresses": addresses}
        write_audit_keys(tmp_path / "keys")
        words = ["river", "stone", "walks", "green", "under", "seven", "small", "lamps", "and", "none", "sleeps"]
        lines = [json.dumps({"id": str(number), "text": " ".join(words[number % 5 :] * 2)}) for number in range(12)]
        (tmp_path / "text.jsonl").write_text("\n".join(lines))
        tree: dict[str, Any] = {
            "model": {"source": node.settings.model.source, "first_layer": 2, "last_layer": 4},
            "connection": {
                "address": through(node.settings.listen),
                "tls": {name: str(path) for name, path in vars(pki["tln"]).items()},
            },
            "stack": {"kind": "gram", "gram": {"radial": False, "sign_invariant": True}},
            "frame": {"mechanisms": names, "bottleneck": {"width": 8}, "input_gradient_clip_norm": 0.0},
            "gradient": {"policy": "open", "unsafe": True},
            "corpus": {"path": str(tmp_path / "text.jsonl"), "block_tokens": 6},
            "train": {"out": str(tmp_path / "out"), "steps": STEPS, "frames_per_step": 4, "max_evaluation_blocks": 2},
            "record": {"folder": str(tmp_path / "bundle"), "audit_key": str(tmp_path / "keys" / "audit.pub")},
        }
        if "decoys" in names:
            tree["frame"]["decoys"] = {"count": 5, "pool_size": 40}
        for name, section in sections.items():
            tree[name] = {**tree.get(name, {}), **section}
        settings = build(TlnSettings, tree, "test")
        texts = load_texts(settings.model, settings.corpus)
        prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
        seen = Seen()
        seen.watch(monkeypatch)
        finetune(settings, NoProgress(), lambda _: None)
        config = tmp_path / "frame.toml"
        config.write_text(f"[frame]\nmechanisms = {json.dumps(names)}\n")
        return Run(tmp_path / "bundle", tmp_path / "keys", seen, config)

    return make


def _replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *(str(argument) for argument in arguments)], catch_exceptions=False)


def _written(out: Path, session: str = "*") -> dict[tuple[int, str], dict[str, torch.Tensor]]:
    found = {}
    for file in sorted(out.glob(f"{session}/*.safetensors")):
        step, _, hop = file.stem.partition("-")
        found[int(step), hop] = safetensors.torch.load_file(file)
    return found


@pytest.mark.parametrize("ratchet_steps", [0, 2])
def test_every_gauge_comes_off_as_the_trusted_node_took_it_off(
    run: Callable[..., Run], tmp_path: Path, ratchet_steps: int
) -> None:
    """RETURN and INPUT_GRADIENT rows bit for bit; FORWARD and BACKWARD rows, which the gauges had rounded, closely."""
    done = run(GAUGED, keys={"ratchet_steps": ratchet_steps})
    result = _replay(done.bundle, "--key", done.keys / "audit.key", "--out", tmp_path / "ungauged")
    assert result.exit_code == 0, result.output
    written = _written(tmp_path / "ungauged")
    assert written.keys() == done.seen.rows.keys()
    assert sum(hop == "backward" for _, hop in written) == STEPS
    for place, had in done.seen.rows.items():
        rows = written[place]["rows"]
        if place[1] in ("return", "input_gradient"):
            assert torch.equal(rows, had), place
        else:
            torch.testing.assert_close(rows, had, rtol=1e-5, atol=1e-5 * float(had.abs().max()))


@pytest.mark.parametrize(("topology", "num_nodes"), [("views", 2), ("replicas", 3)])
def test_gauges_that_several_nodes_share_come_off_in_each_session(
    run: Callable[..., Run], tmp_path: Path, topology: str, num_nodes: int
) -> None:
    """Views: the shares side by side are the rows of the whole width. Replicas: one is recorded and has all."""
    done = run(GAUGED, topology=topology, num_nodes=num_nodes)
    report = replay(done.bundle, key=done.keys / "audit.key", out=tmp_path / "ungauged")
    assert len(report.sessions) == (1 if topology == "replicas" else num_nodes)
    assert report.problems == []
    written = [_written(tmp_path / "ungauged", session) for session in report.sessions]
    for place, had in done.seen.rows.items():
        parts = [one[place]["rows"] for one in written]
        torch.testing.assert_close(torch.cat(parts, dim=-1), had, rtol=1e-5, atol=1e-5 * float(had.abs().max()))


def test_the_truth_comes_in_the_order_of_the_ungauged_rows(run: Callable[..., Run], tmp_path: Path) -> None:
    """Real rows first and in the order of their text; the command says how many frames it checked."""
    done = run(GAUGED)
    result = _replay(done.bundle, "--key", done.keys / "audit.key", "--out", tmp_path / "ungauged")
    forwards = {place: tensors for place, tensors in _written(tmp_path / "ungauged").items() if place[1] == "forward"}
    assert f"{len(forwards)} FORWARD frames are those of the truth" in result.stdout
    for tensors in forwards.values():
        for real, order in zip(tensors["real"], tensors["order"], strict=True):
            count = int(real.sum())
            assert real.tolist() == [1] * count + [0] * (len(real) - count)
            assert order[:count].tolist() == list(range(count))


@pytest.mark.parametrize(
    "sections",
    [
        {"frame": {"decoys": {"count": 6, "pool_size": 40, "min_real_rows": 2}}},
        {"frame": {"decoys": {"count": 6, "pool_size": 40, "kind": "reencoded"}}},
        {
            "frame": {"decoys": {"count": 6, "pool_size": 40}},
            "gradient": {"policy": "replay", "unsafe": False, "clip_norm": 0.1},
        },
    ],
    ids=["varying", "reencoded", "replay"],
)
def test_real_rows_come_into_order_among_every_kind_of_decoys(
    run: Callable[..., Run], sections: dict[str, Any]
) -> None:
    """Also where their number varies from frame to frame, and where the decoys are whole blocks."""
    done = run(GAUGED, **sections)
    report = replay(done.bundle, key=done.keys / "audit.key")
    assert report.problems == []
    assert report.is_order_checked
    assert report.num_frames["BACKWARD"] == STEPS


def test_a_bundle_of_the_tap_replays_with_the_settings_and_the_sealed_files(
    run: Callable[..., Run], loop: asyncio.AbstractEventLoop, pki: dict[str, TlsFiles], tmp_path: Path
) -> None:
    """The same rows as from the trusted node's own bundle, digest by digest."""
    taps: list[Tap] = []

    def on_loop(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    def through(address: str) -> str:
        settings = TapSettings(listen="127.0.0.1:0", upstream=address, out=tmp_path / "tap", tls=pki["tap"])
        taps.append(on_loop(Tap.start(settings)))
        return taps[0].address

    done = run(["bottleneck", "clip_noise", "decoys", "permutation"], through=through)
    on_loop(taps[0].stop(0.1))
    key = done.keys / "audit.key"
    sealed = ["--truth", done.bundle / "truth.sealed", "--run-key", done.bundle / RUN_KEY_FILE]
    with pytest.raises(BundleError, match="was recorded by tap, which does not know"):
        _replay(tmp_path / "tap", "--key", key, *sealed)
    of_tap = _replay(tmp_path / "tap", "--key", key, *sealed, "--config", done.config)
    assert of_tap.exit_code == 0, of_tap.output
    assert of_tap.stdout == _replay(done.bundle, "--key", key).stdout


def test_two_replays_say_the_same(run: Callable[..., Run]) -> None:
    """Two auditors can compare one line a hop."""
    done = run(["bottleneck", "clip_noise", "decoys", "permutation"])
    first, second = (replay(done.bundle, key=done.keys / "audit.key") for _ in range(2))
    assert first.digests == second.digests
    assert first.gauges == ("permutation",)
    assert first.is_order_checked
    assert first.num_joined == first.num_frames["FORWARD"] > STEPS


def test_the_run_key_of_another_run_is_noticed(run: Callable[..., Run], tmp_path: Path) -> None:
    """The real rows do not come into order, and the message names the step."""
    done = run(GAUGED)
    public = load_sealing_public_key(done.keys / "audit.pub")
    other = tmp_path / "other.sealed"
    other.write_bytes(seal(RunKey.generate().reveal(), public, RUN_KEY_PURPOSE))
    with pytest.raises(BundleError, match=r"step \d+ of session [0-9a-f]+: without the permutation"):
        replay(done.bundle, key=done.keys / "audit.key", run_key=other)


def test_what_is_missing_is_named(run: Callable[..., Run], tmp_path: Path) -> None:
    """Run key, truth, the right audit key, a gauge, an empty folder: each has its message."""
    done = run(["bottleneck", "clip_noise", "decoys", "permutation"])
    key = done.keys / "audit.key"
    write_audit_keys(tmp_path / "others")
    with pytest.raises(SealError, match="does not open with this key"):
        replay(done.bundle, key=tmp_path / "others" / "audit.key")
    with pytest.raises(SettingsError, match="is not empty"):
        replay(done.bundle, key=key, out=tmp_path)
    with pytest.raises(BundleError, match=r"has no gauge to undo: frame\.mechanisms has none of permutation"):
        replay(done.bundle, key=key, settings={"frame": {"mechanisms": ["bottleneck"]}})
    (done.bundle / "truth.sealed").unlink()
    unchecked = _replay(done.bundle, "--key", key, "--config", done.config)
    assert unchecked.exit_code == 4
    assert "no truth: nothing tells whether the run key is that of this run" in unchecked.stderr
    (done.bundle / RUN_KEY_FILE).unlink()
    with pytest.raises(BundleError, match=r"run-key\.sealed is missing"):
        replay(done.bundle, key=key)


def test_a_bundle_that_was_cut_off_is_told(run: Callable[..., Run]) -> None:
    """Its frames come out, and the command fails."""
    done = run(["bottleneck", "clip_noise", "decoys", "permutation"])
    wire = done.bundle / "wire.mcap"
    wire.write_bytes(wire.read_bytes()[:-500])
    result = _replay(done.bundle, "--key", done.keys / "audit.key")
    assert result.exit_code == 4
    assert "wire.mcap was changed since the recorder closed the bundle" in result.stderr


def test_the_auditor_reads_what_a_replay_wrote(run: Callable[..., Run], tmp_path: Path) -> None:
    """Rows, labels and gradients join without a fault, and are those of the files."""
    made = run(GAUGED)
    key = made.keys / "audit.key"
    replay(made.bundle, key=key, out=tmp_path / "ungauged")
    evidence = open_evidence([made.bundle], key=key, ungauged=tmp_path / "ungauged")
    with opened_material(evidence, Plan(), lambda *_: None) as opened:
        assert opened.material.ungauged is not None
        with opened_ungauged(opened.material.ungauged, opened.material, Plan()) as (capture, _):
            assert capture.problems == []
            assert len(capture.items) == len(opened.material.capture.items) > STEPS
            assert (capture.items.gradient_first >= 0).sum() == (
                opened.material.capture.items.gradient_first >= 0
            ).sum()
            assert sorted(capture.rows.label) == sorted(opened.material.capture.rows.label)
            first = sorted((tmp_path / "ungauged").glob("*/*-forward.safetensors"))[0]
            rows = safetensors.torch.load_file(first)["rows"][0]
            torch.testing.assert_close(torch.from_numpy(capture.forward.gather(np.arange(len(rows)))), rows)
