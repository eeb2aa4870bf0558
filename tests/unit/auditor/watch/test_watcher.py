"""The loop: it follows what grows, ends with it, says what it skipped, and shows where it stands without content."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from rich.console import Console
from typer.testing import CliRunner

from auditor.cli import app
from auditor.watch import Watcher, WatchSettings
from auditor.watch.groups import _MAX_WAITING_STEPS
from auditor.watch.settings import ActionSettings
from auditor.watch.view import line, screen, shown
from splitwire.bundles import WireRecord
from splitwire.errors import BundleError, SettingsError
from splitwire.v1 import channels_pb2

from .conftest import SESSION, Growing, catch_up

Record = Callable[..., Growing]
Watch = Callable[..., Watcher]


def test_what_grows_is_read_once_and_the_end_of_the_bundle_ends_the_watch(record: Record, watch: Watch) -> None:
    recording = record()
    watcher = watch(recording)
    assert catch_up(watcher) == set()
    for total in (3, 5, 9):
        recording.steps(total - recording.step)
        catch_up(watcher)
        assert watcher.state().num_frames == {"FORWARD": total, "BACKWARD": total}
    recording.close()
    last = watcher.run(stopped=lambda: False, show=lambda _state: None)
    assert last.is_closed
    assert last.num_frames == {"FORWARD": 9, "BACKWARD": 9}
    assert (last.num_skipped, last.num_unmatched, last.num_problems) == (0, 0, 0)


def test_a_watch_that_stays_shows_what_it_found_until_it_is_told_to_stop(record: Record, watch: Watch) -> None:
    """The bundle is closed from the start; it takes turn after turn all the same."""
    recording = record()
    recording.steps(2)
    recording.close()
    turns: list[object] = []
    watch(recording, stay=True, poll_seconds=0.01).run(stopped=lambda: len(turns) > 5, show=turns.append)
    assert len(turns) > 5


def test_it_waits_for_a_recorder_that_has_not_begun(watch: Watch, record: Record) -> None:
    recording = record()
    recording.folder.rename(recording.folder.with_name("later"))
    watcher = watch(recording)
    assert not watcher.turn()
    assert line(watcher.state()) == line(watcher.state())
    assert "waiting for the recorder" in line(watcher.state())
    recording.folder.with_name("later").rename(recording.folder)
    recording.steps(1)
    assert watcher.turn()


def test_a_killed_recorder_ends_the_watch_by_idleness(record: Record, watch: Watch) -> None:
    recording = record()
    recording.steps(4)
    recording.abandon()
    content = (recording.folder / "wire.mcap").read_bytes()
    (recording.folder / "wire.mcap").write_bytes(content[:-4000])
    last = watch(recording, idle_seconds=0.05).run(stopped=lambda: False, show=lambda _state: None)
    assert not last.is_closed
    assert last.num_frames.get("FORWARD", 0) < 4


def test_a_bundle_that_was_replaced_ends_it_with_the_reason(record: Record, watch: Watch) -> None:
    recording = record()
    recording.steps(2)
    watcher = watch(recording)
    catch_up(watcher)
    wire = recording.folder / "wire.mcap"
    shutil.copy(wire, recording.folder / "other")
    (recording.folder / "other").replace(wire)
    with pytest.raises(BundleError, match="replaced by another file"):
        watcher.turn()


def test_frames_that_it_falls_behind_are_skipped_and_counted(record: Record, watch: Watch) -> None:
    recording, lines = record(), []
    for _ in range(30):
        recording.steps(4)  # a chunk each
    watcher = watch(recording, max_backlog_bytes=60_000, lines=lines)
    catch_up(watcher)
    state = watcher.state()
    assert state.num_skipped > 20
    assert state.num_skipped + sum(state.num_frames.values()) + state.num_unmatched == 240
    assert b"auditor_watch_skipped_frames_total %d.0" % state.num_skipped in generate_latest(watcher.metrics.registry)
    assert "SKIPPED" in line(state)
    assert any("skipping to the newest" in told for told in lines)
    recording.steps(2)
    catch_up(watcher)
    assert watcher.state().num_skipped == state.num_skipped


def test_a_finished_bundle_is_read_whole(record: Record, watch: Watch) -> None:
    recording = record()
    for _ in range(30):
        recording.steps(4)
    recording.close()
    state = watch(recording, max_backlog_bytes=60_000).run(stopped=lambda: False, show=lambda _state: None)
    assert (state.num_skipped, state.num_frames["FORWARD"]) == (0, 120)


def test_truth_of_other_bytes_is_not_used(record: Record, watch: Watch) -> None:
    recording = record(gradient="clip_noise", digest="0" * 64)
    watcher = watch(recording)
    recording.steps(60)
    assert catch_up(watcher) == set()
    assert watcher.state().num_unmatched == 60
    assert "60 frames without truth" in line(watcher.state())


@pytest.mark.parametrize("limit", [1, 1 << 28])
def test_messages_that_are_not_of_the_contract_are_counted(record: Record, watch: Watch, limit: int) -> None:
    """While it keeps up and while it skips."""
    recording = record()
    for hop, kind in (
        (channels_pb2.HOP_CONTROL, "OpenSessionRequest"),
        (channels_pb2.HOP_FORWARD, "ExchangeRequest"),
    ):
        recording.writer.write(WireRecord(hop, "request", SESSION, b"\xff\xff", 1, 1, kind))
    recording.writer.flush()
    recording.steps(2)
    watcher = watch(recording, max_backlog_bytes=limit)
    catch_up(watcher)
    assert watcher.state().num_problems == 2
    assert "2 messages against the contract" in line(watcher.state())


def test_steps_that_wait_for_their_gradient_are_bounded(record: Record, watch: Watch) -> None:
    recording = record(gradient="none", rows=4, real=2, width=4)
    watcher = watch(recording, detectors=("support",))
    recording.steps(_MAX_WAITING_STEPS + 40)
    catch_up(watcher)
    assert len(watcher._joiner._steps) == _MAX_WAITING_STEPS


def test_metrics_and_screen_show_the_readings_and_nothing_private(record: Record, watch: Watch) -> None:
    recording = record(gradient="open")
    watcher = watch(recording)
    recording.steps(60)
    catch_up(watcher)
    text = generate_latest(watcher.metrics.registry).decode()
    assert 'auditor_watch_leak{detector="support"} 1.0' in text
    assert 'auditor_watch_leak{detector="linkage"} 0.0' in text
    assert "auditor_watch_support_frames 60.0" in text
    assert 'auditor_watch_partition_auc_ratio{hop="BACKWARD"} 1.0' in text
    assert 'auditor_gate_pp{attack="streaming_probe",family="forward_only"}' in text
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(screen(watcher.state()))
    console.file.close()
    seen = console.export_text()
    assert "LEAK support: 60 frames whose zero gradients are exactly the decoys" in seen
    for private in (SESSION, "doc-"):
        assert private not in text + seen + line(watcher.state())


def test_plain_lines_are_few(record: Record, watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    recording = record()
    watcher = watch(recording)
    recording.steps(2)
    with shown(Console()) as show:
        for _ in range(5):
            show(watcher.state())
        assert len(capsys.readouterr().out.splitlines()) == 1
        recording.close()
        catch_up(watcher)
        for _ in range(5):
            show(watcher.state())
    (last,) = capsys.readouterr().out.splitlines()
    assert "bundle closed" in last


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "bundle is not set"),
        ({"truth": Path("t")}, "key is not set"),
        ({"detectors": ()}, "detectors is empty"),
        ({"actions": ActionSettings(stop_pids=(2**30,))}, "no other process"),
    ],
)
def test_settings_with_which_it_cannot_watch_are_named(settings: dict[str, object], named: str) -> None:
    chosen = {"bundle": Path("b")} | settings if settings else {}
    with pytest.raises(SettingsError, match=named):
        WatchSettings(**chosen).check()  # type: ignore[arg-type]


def test_the_command_ends_with_a_code(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 where nothing was found, 1 where a leak was; quotes that do not close are refused."""
    monkeypatch.setattr("auditor.watch.priority.yield_cores", lambda _priority: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    runner = CliRunner()
    for gradient, code in (("hidden", 0), ("open", 1)):
        recording = record(gradient=gradient)
        recording.steps(3)
        recording.close()
        result = runner.invoke(app, ["watch", str(recording.folder), "--set", "metrics.listen=''"])
        assert result.exit_code == code
        assert "3 backward, 3 forward" in result.stdout
        assert ("LEAK support" in result.stderr) == bool(code)
    result = runner.invoke(app, ["watch", "b", "--on-leak", "a 'b"])
    assert isinstance(result.exception, SettingsError)
