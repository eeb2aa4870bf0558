"""Each streaming detector finds the leak that it is for, and calls none in a clean recording of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from auditor.watch import Watcher
from auditor.watch.linkage import _History
from splitwire.v1 import stack_pb2

from .conftest import Growing, catch_up

Record = Callable[..., Growing]
Watch = Callable[..., Watcher]


@pytest.mark.parametrize("with_truth", [True, False])
def test_open_gradients_are_found_at_the_first_backward_frame(record: Record, watch: Watch, with_truth: bool) -> None:
    recording = record(gradient="open")
    watcher = watch(recording, with_truth=with_truth)
    recording.steps(1)
    assert catch_up(watcher) == {"support"}


def test_norms_that_differ_are_found_and_norms_alike_are_not(record: Record, watch: Watch) -> None:
    leaky, clean = record(gradient="clip_noise"), record(gradient="hidden")
    watchers = watch(leaky), watch(clean)
    for recording in (leaky, clean):
        recording.steps(90)
    assert catch_up(watchers[0]) == {"gradient_norm"}
    assert catch_up(watchers[1]) == set()
    found = {reading.detector: reading for reading in watchers[0].state().readings}["gradient_norm"]
    assert found.lower is not None
    assert found.value is not None
    assert 0.55 < found.lower < found.value


def test_forward_norms_have_a_detector_of_their_own(record: Record, watch: Watch) -> None:
    recording = record(real_length=2.5)
    watcher = watch(recording)
    recording.steps(90)
    assert catch_up(watcher) == {"forward_norm"}


def test_without_truth_two_groups_of_norms_are_found_and_one_is_not(record: Record, watch: Watch) -> None:
    two, one = record(real_length=9.0), record(real_length=1.1)
    watchers = watch(two, with_truth=False), watch(one, with_truth=False)
    for recording in (two, one):
        recording.steps(150)
    assert catch_up(watchers[0]) == {"forward_norm"}
    assert catch_up(watchers[1]) == set()


def test_rows_that_are_sent_again_under_another_rotation_are_found(record: Record, watch: Watch) -> None:
    leaky, clean = record(resent=0.6), record()
    watchers = [watch(recording, with_truth=False) for recording in (leaky, clean)]
    for recording in (leaky, clean):
        recording.steps(90)
    assert catch_up(watchers[0]) == {"linkage"}
    assert catch_up(watchers[1]) == set()


def test_whole_frames_sent_again_are_found_by_their_cosines_where_norms_say_nothing(
    record: Record, watch: Watch
) -> None:
    """With int8 rows chance agreements of norms are many."""
    recording = record(dtype=stack_pb2.WIRE_DTYPE_INT8_ROW, rows=32, real=32, width=32)
    watcher = watch(recording, with_truth=False)
    kept: list[Any] = []

    def resend(rows: np.ndarray, _real: np.ndarray) -> None:
        if len(kept) > 20:
            rows[0] = kept[int(recording.generator.integers(len(kept)))]
        kept.append(rows[0].copy())
        rows[0] = rows[0] @ np.linalg.qr(recording.generator.normal(size=(32, 32)))[0]

    recording._resend = resend  # type: ignore[method-assign]
    recording.steps(80)
    assert "linkage" in catch_up(watcher)
    (found,) = (reading.leak for reading in watcher.state().readings if reading.leak)
    assert "by gram" in found


def test_tokens_are_read_where_rows_point_to_their_label(record: Record, watch: Watch) -> None:
    leaky, clean = record(leak=3.0, gradient="none"), record(gradient="none")
    watchers = watch(leaky), watch(clean)
    for recording in (leaky, clean):
        recording.steps(150)
    assert catch_up(watchers[0]) == {"token"}
    assert catch_up(watchers[1]) == set()
    gates = [watcher.state().gate for watcher in watchers]
    assert gates[0] is not None
    assert gates[1] is not None
    assert gates[0].gate_pp > 20 > gates[1].gate_pp


def test_the_gate_is_read_on_the_newest_rows_only(record: Record, watch: Watch) -> None:
    recording = record(gradient="none")
    watcher = watch(recording, window_rows=100)
    recording.steps(120)
    catch_up(watcher)
    gate = watcher.state().gate
    assert gate is not None
    assert 80 < gate.total_rows <= 100


def test_sequences_are_the_units_of_a_transformer_batch(record: Record, watch: Watch) -> None:
    """One sequence alone has nothing to hide among: rows of zeros within it are no partition."""
    recording = record(gradient="open", transformer=True)
    watcher = watch(recording, with_truth=False)
    recording.steps(3)
    assert catch_up(watcher) == set()


def test_the_memory_of_linkage_is_a_ring_that_agrees_with_a_plain_search() -> None:
    generator = np.random.default_rng(3)
    history, kept = _History(4, capacity=50), np.zeros((0, 4), np.float32)
    for _ in range(30):
        rows = generator.normal(size=(7, 4)).astype(np.float32)
        history.add(rows, np.linalg.norm(rows.astype(np.float64), axis=1))
        kept = np.concatenate((kept, rows))[-50:]
        assert history.num_rows == len(kept)
        asked = np.linalg.norm(kept[generator.integers(0, len(kept), 5)].astype(np.float64), axis=1)
        slots = history.nearest(asked, 1e-9)
        assert np.allclose(np.linalg.norm(history.rows(slots[:, 0])[0], axis=1), asked)
        assert (history.nearest(asked * 1.5 + 10, 1e-9) == -1).all()
