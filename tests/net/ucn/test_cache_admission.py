"""A node without room for another cache: who waits gets it when it comes, and nobody waits for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest

from splitwire.v1 import channels_pb2, stack_pb2
from ucn.settings import AdmissionSettings, LimitSettings

CACHED = stack_pb2.COMPUTE_MODE_CACHED
MAX_BYTES = 1000  # a scripted stack says 100 bytes for each row


def send(kit: Any, stream: Any, positions: int, step: int = 1) -> None:
    """A CACHED frame of one sequence."""
    rows = kit.rows(1, positions)
    stream.send(*kit.frame(channels_pb2.HOP_FORWARD, step, rows, compute_mode=CACHED, cache_id=1))


def wait_until(running: Any, num_waiting: float, kit: Any) -> None:
    deadline = time.monotonic() + kit.wait_seconds
    while running.server.registry.get_sample_value("ucn_cache_waiting") != num_waiting:
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.005)


def start(start_server: Any, kit: Any, wait_seconds: float, **limits: Any) -> Any:
    return start_server(
        kit.node().build(),
        limits=LimitSettings(max_total_cache_bytes=MAX_BYTES, **limits),
        admission=AdmissionSettings(wait_seconds=wait_seconds),
    )


def test_a_cache_starts_when_another_session_ends(start_server: Any, connect: Any, kit: Any) -> None:
    """The one that decodes goes on meanwhile, and the one that waits is answered as if nothing had been."""
    running = start(start_server, kit, wait_seconds=kit.wait_seconds)
    client = connect(running)
    ids = [client.open(kit.request()).session_id for _ in range(2)]
    first, second = (client.stream(session_id) for session_id in ids)
    first.forward(1, kit.rows(1, 8), compute_mode=CACHED, cache_id=1)
    send(kit, second, 5)
    wait_until(running, 1, kit)
    first.forward(2, kit.rows(1, 1), compute_mode=CACHED, cache_id=1)
    assert running.server.registry.get_sample_value("ucn_cache_waiting") == 1
    client.close_session(ids[0])
    assert second.receive_tensor().equal(2 * kit.rows(1, 5))
    wait_until(running, 0, kit)
    assert running.server.registry.get_sample_value("ucn_cache_bytes") == 500


def test_a_cache_that_waited_in_vain_is_refused_and_may_come_again(start_server: Any, connect: Any, kit: Any) -> None:
    running = start(start_server, kit, wait_seconds=0.2)
    client = connect(running)
    ids = [client.open(kit.request()).session_id for _ in range(2)]
    client.stream(ids[0]).forward(1, kit.rows(1, 8), compute_mode=CACHED, cache_id=1)
    stream = client.stream(ids[1])
    send(kit, stream, 5)
    with pytest.raises(kit.refusal, match=r"no room for a new one came in 0\.2 s") as refusal:
        stream.receive_tensor()
    assert (refusal.value.code, refusal.value.error) == ("RESOURCE_EXHAUSTED", "LimitError")
    assert "max_total_cache_bytes" in refusal.value.remedy
    client.close_session(ids[0])
    stream = client.stream(ids[1])
    send(kit, stream, 5)
    assert stream.receive_tensor().equal(2 * kit.rows(1, 5))


def test_a_session_that_is_closed_does_not_wait_on(start_server: Any, connect: Any, kit: Any) -> None:
    """CloseSession returns at once, and a line that is shorter lets the next one in."""
    running = start(start_server, kit, wait_seconds=600)
    client = connect(running)
    ids = [client.open(kit.request()).session_id for _ in range(3)]
    streams = [client.stream(session_id) for session_id in ids]
    streams[0].forward(1, kit.rows(1, 5), compute_mode=CACHED, cache_id=1)
    send(kit, streams[1], 9)
    wait_until(running, 1, kit)
    send(kit, streams[2], 3)
    wait_until(running, 2, kit)
    client.close_session(ids[1])
    assert streams[2].receive_tensor().equal(2 * kit.rows(1, 3))


def test_a_peer_has_a_share(start_server: Any, connect: Any, kit: Any) -> None:
    """One peer cannot take the room of all; another one still starts while the first waits."""
    running = start(start_server, kit, wait_seconds=600, max_cache_bytes_per_peer=500)
    greedy, other = connect(running), connect(running, "tap")
    streams = [greedy.stream(greedy.open(kit.request()).session_id) for _ in range(2)]
    streams[0].forward(1, kit.rows(1, 4), compute_mode=CACHED, cache_id=1)
    with pytest.raises(kit.refusal, match="of this peer"):
        greedy.stream(greedy.open(kit.request()).session_id).forward(1, kit.rows(1, 6), compute_mode=CACHED, cache_id=1)
    send(kit, streams[1], 3)
    wait_until(running, 1, kit)
    stream = other.stream(other.open(kit.request()).session_id)
    stream.forward(1, kit.rows(1, 4), compute_mode=CACHED, cache_id=1)
