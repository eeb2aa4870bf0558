"""The other end of a bare socket: the delegated layers with their cache in a process of their own, and nothing else.

    python -P benchmarks/socket_peer.py DESCRIPTOR MODEL_SETTINGS_AS_JSON

No TLS, no sessions, no checks, no framing beyond what a socket needs: what a decode step costs here is what any two
processes cost on this machine. It is started with one end of a socket pair, never listens, and ends with the pair.

A message is a header (number of positions, whether a new sequence begins) and rows [1, T, H] as they lie in memory.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from splitwire.console import prepare_process

prepare_process()  # before torch loads, as in every program

import torch  # noqa: E402

from splitwire.backbone import ModelSettings, load_middle  # noqa: E402

_HEADER = struct.Struct("<I?")
_END_SECONDS = 10.0


@contextmanager
def running_peer(model: ModelSettings) -> Iterator[socket.socket]:
    """Starts the peer and yields this end of the pair."""
    here, there = socket.socketpair()
    arguments = json.dumps(dataclasses.asdict(model), default=str)
    with here:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(there.fileno()), arguments],
            pass_fds=[there.fileno()],
        )
        there.close()
        try:
            yield here
        finally:
            here.shutdown(socket.SHUT_RDWR)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def send_rows(link: socket.socket, rows: torch.Tensor, *, begins: bool = False) -> None:
    """Sends rows [1, T, H]; `begins` has the peer drop its cache first."""
    payload = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    link.sendall(_HEADER.pack(rows.shape[1], begins) + payload)


def receive_rows(link: socket.socket, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
    """Rows [1, T, width] on the CPU, and whether a new sequence begins. EOFError when the other end is closed."""
    positions, begins = _HEADER.unpack(_receive(link, _HEADER.size))
    payload = _receive(link, positions * width * dtype.itemsize)
    return torch.frombuffer(payload, dtype=dtype).view(1, positions, width), begins


def _receive(link: socket.socket, size: int) -> bytearray:
    payload = bytearray(size)
    if link.recv_into(payload, size, socket.MSG_WAITALL) < size:
        raise EOFError
    return payload


@torch.no_grad()
def _serve(link: socket.socket, model: ModelSettings) -> None:
    middle = load_middle(model)
    cache = middle.new_cache()
    while True:
        rows, begins = receive_rows(link, middle.hidden_width, middle.dtype)
        if begins:
            cache = middle.new_cache()
        send_rows(link, middle(rows.to(middle.device), cache=cache))


if __name__ == "__main__":
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])), ModelSettings(**json.loads(sys.argv[2])))
    except (EOFError, ConnectionError):
        sys.exit(0)
