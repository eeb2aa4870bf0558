"""The benchmarks compare what they say: the same tokens on every side, and the same payload with mechanisms off."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import battery, floor, protected, watch
from benchmarks.measure import in_turns
from benchmarks.nodes import running, running_gram
from splitwire.backbone import ModelSettings
from splitwire.bundles import WireRecord
from tln.connect import Connected

pytestmark = pytest.mark.e2e


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSettings:
    """Tiny llama, layers 2 to 4 of 6 delegated."""
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path / "cache"))
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


def test_calls_take_turns() -> None:
    """As many of each, and no call is always first."""
    order: list[str] = []
    seconds = in_turns([lambda: order.append("a"), lambda: order.append("b"), lambda: order.append("c")], rounds=3)
    assert [len(each) for each in seconds] == [3, 3, 3]
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_the_bare_socket_computes_what_the_split_does(model: ModelSettings, tmp_path: Path) -> None:
    """The floor is of the same work: unsplit, pausing, bare socket and split give the same tokens."""
    with running(tmp_path, model) as nodes:
        speed, added, idling = floor.rows(nodes, tokens=6, rounds=2)
    assert speed.numbers["outputs_identical"] == 1.0
    assert all(speed.numbers[f"{name}_step_ms"] > 0 for name in ("unsplit", "pausing", "bare", "split"))
    steps = speed.numbers
    assert added.value == pytest.approx(steps["bare_step_ms"] - steps["unsplit_step_ms"])
    assert idling.value == pytest.approx(steps["pausing_step_ms"] - steps["unsplit_step_ms"])


def test_a_pause_is_as_long_as_the_work_before_it() -> None:
    """What is slept is told, so that it can be left out."""
    pauses = floor.Pauses()
    time.sleep(0.03)
    began = time.perf_counter()
    pauses(torch.nn.Identity(), ())
    assert 0.03 <= pauses.seconds <= time.perf_counter() - began


def test_a_protected_step_and_its_yardstick_send_the_same_payload(model: ModelSettings, tmp_path: Path) -> None:
    """Every message of a step has the same size on both sides, and only the protected side hides anything."""
    with running_gram(tmp_path, model) as nodes, protected.protected(nodes) as on, protected.padded(nodes) as off:
        sizes = [_sizes_of_a_step(connected) for connected in (on, off)]
        assert sizes[0] == sizes[1]
        assert sum(sizes[0]) > 4 * protected.FRAMES * protected.FRAME_ROWS * 48 * 4
        assert set(on.model.pipeline.describe()) > {"clip", "noise", "decoys", "permutation", "rotation"}
        assert set(off.model.pipeline.describe()) == {"bottleneck", "padding"}


def test_peak_memory_is_that_of_the_processes(model: ModelSettings, tmp_path: Path) -> None:
    """More than an interpreter with torch, and stated for both nodes."""
    with running_gram(tmp_path, model) as nodes:
        peaks = protected.peak_mebibytes(nodes)
    assert set(peaks) == {"trusted_peak_mib", "untrusted_peak_mib"}
    assert all(100 < value < 8192 for value in peaks.values())


def test_the_watch_is_measured_beside_a_run_alone_and_against_the_tap(model: ModelSettings, tmp_path: Path) -> None:
    """It reads every frame that the tap wrote, and each ratio is that of the numbers beside it."""
    cost, speed, rate = watch.rows(tmp_path / "watch", model, rounds=2, mebibytes=1)
    assert cost.value == pytest.approx(cost.numbers["watched_step_ms"] / cost.numbers["alone_step_ms"])
    assert speed.value == pytest.approx(cost.numbers["alone_step_ms"] / speed.numbers["watch_step_ms"])
    assert speed.numbers["skipped_frames"] == 0
    assert rate.numbers["read_mebibytes_per_second"] == speed.numbers["mebibytes_per_second"] > 0
    assert rate.value == pytest.approx(
        rate.numbers["read_mebibytes_per_second"] / rate.numbers["written_mebibytes_per_second"]
    )


def _sizes_of_a_step(connected: Connected) -> list[int]:
    step = protected.training_step(connected, protected.LOSSES["protected step, distillation alone"])
    step()
    sizes: list[int] = []

    def observe(record: WireRecord) -> None:
        sizes.append(len(record.message))

    connected.model.crossing.transport.observers.append(observe)
    step()
    return sizes


def test_the_battery_and_its_yardsticks_do_the_same_schedule() -> None:
    """Both train all nine arms on the same rows; without a GPU the table says so."""
    speed, over, accuracy, *gpu = battery.rows(num_rows=512, epochs=1, rounds=1)
    for side in ("battery", "sequential", "products"):
        assert speed.numbers[f"{side}_wall_seconds"] > 0
        assert speed.numbers[f"{side}_cpu_seconds"] > 0
    assert speed.value == pytest.approx(
        speed.numbers["sequential_wall_seconds"] / speed.numbers["battery_wall_seconds"]
    )
    assert over.value > 0
    assert abs(accuracy.value) < 10
    assert [row.unit for row in gpu] == ([] if torch.cuda.is_available() else ["no GPU"])
