"""What the tap costs: round trips and bytes a second through it, against the same wire without it.

Three processes on loopback with mutual TLS, as in use: an echoing server, `auditor tap` with its recorder, and this
client. The echo computes nothing, so the ratios are the worst case; behind a model's step the tap's share is far
smaller.

Run as a module with a folder of TLS files it is the echoing server.
"""

from __future__ import annotations

import queue
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

import grpc

from benchmarks.measure import Row, alternate, ratio_of_medians, timed
from splitwire import wire
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles, channel_credentials, server_credentials
from splitwire.v1 import stack_pb2

_OPTIONS = (
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
)
_ROUND_TRIPS = 200
_WINDOW = 8  # messages in flight while bytes a second are measured


def rows(folder: Path, *, mebibytes: int, rounds: int) -> Iterator[Row]:
    """Round trips of small messages, and the speed of chunks, both with the recorder at work."""
    with _streams(folder) as (direct, tapped):
        yield _round_trips(direct, tapped, rounds)
        yield _speed(direct, tapped, mebibytes, rounds)


def write_rate(folder: Path, *, mebibytes: int, rounds: int) -> float:
    """MiB a second that the tap writes at most: chunks and their echoes, as fast as they pass through it."""
    with _streams(folder) as (_, tapped):
        seconds = [timed(lambda: tapped.echo(_chunk(), mebibytes, _WINDOW)) for _ in range(1 + rounds)]
    return 2 * mebibytes / statistics.median(seconds[1:])


@contextmanager
def _streams(folder: Path) -> Iterator[tuple[_Stream, _Stream]]:
    """A stream to the echo without, and one with the tap between."""
    files = init_pki(folder / "pki", loopback=True)
    echo = [sys.executable, "-m", "benchmarks.tap", str(folder / "pki" / "ucn")]
    with _process(echo) as upstream:
        tap = [str(Path(sys.executable).parent / "auditor"), "tap", "--listen", "127.0.0.1:0", "--upstream", upstream]
        tap += ["--tls", str(folder / "pki" / "tap"), "--out", str(folder / "bundle")]
        with (
            _process(tap) as address,
            _Stream(upstream, files["tln"]) as direct,
            _Stream(address, files["tln"]) as tapped,
        ):
            yield direct, tapped


def _round_trips(direct: _Stream, tapped: _Stream, rounds: int) -> Row:
    message = stack_pb2.ExchangeRequest(control=stack_pb2.Control(step=1)).SerializeToString()
    without, through = alternate(
        lambda: direct.echo(message, _ROUND_TRIPS, 1), lambda: tapped.echo(message, _ROUND_TRIPS, 1), rounds=rounds
    )
    numbers = {
        "direct_milliseconds": statistics.median(without) * 1000 / _ROUND_TRIPS,
        "tapped_milliseconds": statistics.median(through) * 1000 / _ROUND_TRIPS,
    }
    return Row("round trip through the tap", "no tap", ratio_of_medians(through, without), "times", numbers=numbers)


def _speed(direct: _Stream, tapped: _Stream, mebibytes: int, rounds: int) -> Row:
    message = _chunk()
    without, through = alternate(
        lambda: direct.echo(message, mebibytes, _WINDOW),
        lambda: tapped.echo(message, mebibytes, _WINDOW),
        rounds=rounds,
    )
    numbers = {
        "direct_mebibytes_per_second": mebibytes / statistics.median(without),
        "tapped_mebibytes_per_second": mebibytes / statistics.median(through),
    }
    return Row("speed through the tap", "no tap", ratio_of_medians(without, through), "ratio", numbers=numbers)


def _chunk() -> bytes:
    """A message of one MiB of zeros."""
    return stack_pb2.ExchangeRequest(frame=stack_pb2.Frame(data=bytes(wire.CHUNK_BYTES))).SerializeToString()


class _Stream:
    """One open exchange stream with an echoing server at its end."""

    def __init__(self, address: str, tls: TlsFiles) -> None:
        self._channel = grpc.secure_channel(address, channel_credentials(tls), options=_OPTIONS)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        exchange = self._channel.stream_stream(wire.EXCHANGE)
        self._answers: Any = exchange(iter(self._outbox.get, None), wait_for_ready=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._outbox.put(None)
        self._channel.close()

    def echo(self, message: bytes, count: int, window: int) -> None:
        """Sends the message `count` times, `window` of them in flight, and waits for every answer."""
        for index in range(count + window):
            if index < count:
                self._outbox.put(message)
            if index >= window:
                next(self._answers)


@contextmanager
def _process(command: list[str]) -> Iterator[str]:
    """A server that prints its address as the last word of its first line; the address."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield cast("IO[str]", process.stdout).readline().split()[-1]
        finally:
            process.terminate()


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002 - every method echoes
        return grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)


def _serve(folder: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[_Echo()], options=_OPTIONS)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(TlsFiles.in_folder(folder)))
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
