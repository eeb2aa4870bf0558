"""Background processes that never outlive their owner: stopped in reverse order, and killed by the kernel with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 30.0


_ENDING = (signal.SIGINT, signal.SIGTERM)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Around a fork: an exception that a signal raises in Python's own hooks around it would be printed and lost."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessFailedError(Exception):
    """A program ended with an error, or before it was ready; the message names its log."""


class Processes:
    """Starts programs of this installation in their own process groups; leaving the context stops all of them."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for name, _ in reversed(self._running):
            with contextlib.suppress(ProcessFailedError):
                self.stop(name)

    def start(self, name: str, arguments: Sequence[str], port: int) -> int:
        """Starts a server in the background, waits until `port` accepts and returns its process id.

        Its output goes to `name`.log.
        """
        with (self._log_dir / f"{name}.log").open("wb") as log, _signals_held():
            process = subprocess.Popen(  # noqa: S603 - our own programs
                program(arguments),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - no other thread is running here
            )
            self._running.append((name, process))
        while not _accepts(port):
            if process.poll() is not None:
                raise ProcessFailedError(
                    f"{name} ended with code {process.returncode}; see {log.name}\n{_tail(log.name)}"
                )
            time.sleep(0.1)
        return process.pid

    def stop(self, name: str) -> None:
        """SIGTERM, a grace period, SIGKILL. ProcessFailedError when the program did not end with code 0."""
        index = next(i for i, (other, _) in enumerate(self._running) if other == name)
        _, process = self._running.pop(index)
        code = _end(process)
        if code != 0:
            raise ProcessFailedError(f"{name} ended with code {code}; see {self._log_dir / name}.log")

    @contextlib.contextmanager
    def running(self, name: str, arguments: Sequence[str], port: int) -> Iterator[None]:
        """`start`, then `stop` when the block ends well."""
        self.start(name, arguments, port)
        yield
        self.stop(name)


def program(arguments: Sequence[str]) -> list[str]:
    """The command line of one of this installation's programs, whatever PATH says."""
    return [str(Path(sys.executable).parent / arguments[0]), *arguments[1:]]


def run(
    arguments: Sequence[str], *, accepted: Sequence[int] = (0,), quiet: bool = False, output: Path | None = None
) -> int:
    """Runs a program in the foreground and returns its exit code; ProcessFailedError when it is not an accepted one.

    `quiet` keeps what it prints for the error; `output` is a file for its standard output.
    """
    with contextlib.ExitStack() as stack:
        captured = subprocess.PIPE if quiet else None
        stdout = captured if output is None else stack.enter_context(output.open("wb"))
        with _signals_held():
            process = subprocess.Popen(  # noqa: S603 - our own programs
                program(arguments),
                stdout=stdout,
                stderr=captured,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - no other thread is running here
            )
            stack.enter_context(process)
            stack.callback(_end, process)
        _, errors = process.communicate()
    if process.returncode not in accepted:
        printed = (errors or b"").decode(errors="replace").strip()
        raise ProcessFailedError(f"{' '.join(arguments[:2])} ended with code {process.returncode}. {printed}")
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, a grace period, SIGKILL; the exit code. Nothing where it has ended."""
    process.terminate()
    try:
        return process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def free_port() -> int:
    """A loopback port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _tail(log: str | os.PathLike[str]) -> str:
    return "\n".join(Path(log).read_text(errors="replace").splitlines()[-5:])
