"""What the tap costs: round trips and bytes a second through it, against the same wire without it.

Three processes on loopback with mutual TLS, as in use: an echoing server, `auditor tap` with its recorder, and this
client. The echo does nothing, so the ratios are the worst case; behind a model's step the tap's share is far smaller.

    python -m benchmarks.tap [--megabytes N] [--round-trips N]
"""

from __future__ import annotations

import argparse
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import grpc

from splitwire import wire
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles, channel_credentials, server_credentials
from splitwire.v1 import stack_pb2

_OPTIONS = (
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
)
_WINDOW = 8  # messages in flight while bytes a second are measured


@dataclass(frozen=True)
class Cost:
    """One way to the server."""

    round_trip_seconds: float
    bytes_per_second: float


def main() -> int:
    """Prints both ways and their ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tap", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="bytes that are echoed (default: 256 MiB)")
    parser.add_argument("--round-trips", type=int, default=1000, help="small messages, one at a time (default: 1000)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return _serve(arguments.serve)
    with tempfile.TemporaryDirectory(prefix="splitwire-bench-") as folder:
        direct, tapped = measure(Path(folder), arguments.megabytes, arguments.round_trips)
    for name, cost in (("direct", direct), ("through the tap", tapped)):
        rate = cost.bytes_per_second / (1 << 20)
        print(f"{name:16} {cost.round_trip_seconds * 1000:7.3f} ms a round trip  {rate:7.0f} MiB/s each way")
    print(f"round trip ratio {tapped.round_trip_seconds / direct.round_trip_seconds:.2f}")
    print(f"bytes a second ratio {tapped.bytes_per_second / direct.bytes_per_second:.2f}")
    return 0


def measure(folder: Path, megabytes: int, round_trips: int) -> tuple[Cost, Cost]:
    """The cost without and with the tap."""
    files = init_pki(folder / "pki", loopback=True)
    server = [sys.executable, "-m", "benchmarks.tap", "--serve", str(folder / "pki" / "ucn")]
    with _process(server) as upstream:
        tap = [str(Path(sys.executable).parent / "auditor"), "tap", "--listen", "127.0.0.1:0", "--upstream", upstream]
        tap += ["--tls", str(folder / "pki" / "tap"), "--out", str(folder / "bundle")]
        direct = _cost(upstream, files["tln"], megabytes, round_trips)
        with _process(tap) as address:
            return direct, _cost(address, files["tln"], megabytes, round_trips)


@contextmanager
def _process(command: list[str]) -> Iterator[str]:
    """A server that prints its address as the last word of its first line; the address."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield cast("IO[str]", process.stdout).readline().split()[-1]
        finally:
            process.terminate()


def _cost(address: str, tls: TlsFiles, megabytes: int, round_trips: int) -> Cost:
    with grpc.secure_channel(address, channel_credentials(tls), options=_OPTIONS) as channel:
        outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        answers: Any = channel.stream_stream(wire.EXCHANGE)(iter(outbox.get, None))
        small = stack_pb2.ExchangeRequest(control=stack_pb2.Control(step=1)).SerializeToString()
        frame = stack_pb2.Frame(data=bytes(wire.CHUNK_BYTES))
        large = stack_pb2.ExchangeRequest(frame=frame).SerializeToString()
        _echo(outbox, answers, small, 50, 1)  # connects, and warms both sides up
        trip = _echo(outbox, answers, small, round_trips, 1) / round_trips
        seconds = _echo(outbox, answers, large, megabytes, _WINDOW)
        outbox.put(None)
        return Cost(trip, megabytes * wire.CHUNK_BYTES / seconds)


def _echo(outbox: Any, answers: Any, message: bytes, count: int, window: int) -> float:
    started = time.perf_counter()
    for index in range(count + window):
        if index < count:
            outbox.put(message)
        if index >= window:
            next(answers)
    return time.perf_counter() - started


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002 - every method echoes
        return grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)


def _serve(folder: Path) -> int:
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[_Echo()], options=_OPTIONS)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(TlsFiles.in_folder(folder)))
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
