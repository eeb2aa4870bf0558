"""The recorder must not stand in the way, must count what it loses, and must keep a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from splitwire.bundles import BundleWriter, Recorder, WireRecord, open_bundle, recorder
from splitwire.errors import RecordingError
from splitwire.v1 import channels_pb2

OpenWriter = Callable[..., BundleWriter]
PAYLOAD_BYTES = 1000
ROOM_FOR_TWO = 2 * (PAYLOAD_BYTES + 512)


def record(number: int = 0, size: int = PAYLOAD_BYTES) -> WireRecord:
    return WireRecord(channels_pb2.HOP_FORWARD, "request", "a" * 16, bytes(size), number, number, "ExchangeRequest")


class HeldWriter(BundleWriter):
    """A disk that stands still until `gate` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, recorder="tap", settings={})
        self.gate, self.entered = threading.Event(), threading.Event()

    def write(self, record: WireRecord) -> None:
        self.entered.set()
        assert self.gate.wait(10)
        super().write(record)


class FullWriter(BundleWriter):
    """A disk that is full from the third message on."""

    num_written = 0

    def write(self, record: WireRecord) -> None:
        if self.num_written == 2:
            raise RecordingError("disk full", remedy="free space")
        self.num_written += 1
        super().write(record)


@pytest.fixture
def held(tmp_path: Path) -> HeldWriter:
    return HeldWriter(tmp_path / "held")


@pytest.fixture
def full(tmp_path: Path) -> FullWriter:
    return FullWriter(tmp_path / "full", recorder="tap", settings={})


def test_everything_offered_is_in_the_bundle_in_order(open_writer: OpenWriter) -> None:
    writer = open_writer()
    with Recorder(writer) as running:
        assert all(running.offer(record(number)) for number in range(100))
    bundle = open_bundle(writer.folder)
    assert [message.sent_ns for message in bundle.messages()] == list(range(100))
    assert bundle.is_complete
    assert bundle.num_dropped == 0


def test_messages_of_several_threads_are_all_recorded(open_writer: OpenWriter) -> None:
    writer = open_writer()
    with Recorder(writer) as running, ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda number: running.offer(record(number)), range(200)))
    assert sorted(message.sent_ns for message in open_bundle(writer.folder).messages()) == list(range(200))


def test_a_full_queue_drops_at_once_counts_and_says_so_in_the_manifest(held: HeldWriter) -> None:
    running = Recorder(held, max_queue_bytes=ROOM_FOR_TWO)
    assert running.offer(record(0))
    assert held.entered.wait(10)  # the thread holds message 0, the queue is empty
    begun = time.monotonic()
    assert [running.offer(record(number)) for number in range(1, 6)] == [True, True, False, False, False]
    assert time.monotonic() - begun < 1
    assert running.num_dropped == 3
    held.gate.set()
    running.close()
    bundle = open_bundle(held.folder)
    assert bundle.num_dropped == 3
    assert [message.sent_ns for message in bundle.messages()] == [0, 1, 2]


def test_a_recorder_that_waits_loses_nothing(held: HeldWriter) -> None:
    running = Recorder(held, max_queue_bytes=ROOM_FOR_TWO, when_full="wait")
    with ThreadPoolExecutor(1) as pool:
        offers = pool.submit(lambda: [running.offer(record(number)) for number in range(20)])
        assert held.entered.wait(10)
        assert running.queue_bytes <= ROOM_FOR_TWO
        assert not offers.done()
        held.gate.set()
        assert all(offers.result(10))
    running.close()
    assert len(list(open_bundle(held.folder).messages())) == 20


def test_a_message_larger_than_the_queue_is_recorded_when_nothing_else_waits(open_writer: OpenWriter) -> None:
    writer = open_writer()
    with Recorder(writer, max_queue_bytes=10) as running:
        assert running.offer(record(size=5000))
    assert len(list(open_bundle(writer.folder).messages())) == 1


def test_a_failure_to_write_is_kept_and_the_bundle_stays_incomplete(full: FullWriter) -> None:
    running = Recorder(full)
    for number in range(10):
        running.offer(record(number))
    for _ in range(2):
        with pytest.raises(RecordingError, match="disk full"):
            running.close()
    with pytest.raises(RecordingError, match=r"disk full\. free space"):
        running.raise_if_failed()
    assert running.num_dropped == 8
    bundle = open_bundle(full.folder)
    assert not bundle.is_complete
    assert bundle.manifest is None


def test_after_a_failure_a_waiting_offer_returns(full: FullWriter) -> None:
    running = Recorder(full, max_queue_bytes=ROOM_FOR_TWO, when_full="wait")
    assert [running.offer(record(number)) for number in range(30)].count(False) >= 25
    with pytest.raises(RecordingError):
        running.close()


def test_an_unforeseen_failure_is_kept_too(open_writer: OpenWriter) -> None:
    writer = open_writer()
    running = Recorder(writer, max_queue_bytes=ROOM_FOR_TWO, when_full="wait")
    answers = [running.offer(record(-1)) for _ in range(20)]  # MCAP has no time before 1970
    assert not answers[-1]
    with pytest.raises(RecordingError, match=r"recording failed \(error\)"):
        running.close()
    assert open_bundle(writer.folder).manifest is None


def test_a_bundle_that_cannot_be_closed_is_a_failure_too(
    open_writer: OpenWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer()
    running = Recorder(writer)
    running.offer(record())

    def fail(num_dropped: int = 0) -> None:
        raise RecordingError("disk full")

    monkeypatch.setattr(writer, "close", fail)
    for _ in range(2):
        with pytest.raises(RecordingError, match="disk full"):
            running.close()
    writer.abandon()


def test_an_error_of_the_recording_program_leaves_the_bundle_incomplete(open_writer: OpenWriter) -> None:
    writer = open_writer()

    def fail() -> None:
        with Recorder(writer) as running:
            running.offer(record())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    bundle = open_bundle(writer.folder)
    assert bundle.manifest is None
    assert len(list(bundle.messages())) == 1


def test_after_closing_nothing_is_taken(open_writer: OpenWriter) -> None:
    running = Recorder(open_writer())
    running.close()
    running.close()
    assert not running.offer(record())


def test_a_quiet_wire_is_flushed(open_writer: OpenWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", 0.02)
    writer = open_writer()
    with Recorder(writer) as running:
        running.offer(record())
        deadline = time.monotonic() + 10
        while not list(open_bundle(writer.folder).messages()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
