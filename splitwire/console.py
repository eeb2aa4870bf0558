"""How every program starts and ends: process defaults, one line for an error, and the exit code.

Nothing here imports torch, so that thread settings reach the OpenMP runtime before it loads.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from splitwire.errors import InternalError, RecordingError, SplitwireError

_SPIN_COUNT = "30000"
"""Long enough to bridge the gap between two operations of a model, too short to hold a core while the peer computes."""
_INTERRUPTED = 130
_CLEAN_UP_SECONDS = 15
_TERMINATED = 128 + signal.SIGTERM


def run(app: Callable[[], object], program: str) -> None:
    """Runs a typer application and exits with the code of the error tree; a user's mistake never shows a traceback.

    SIGTERM ends it like an interruption does: sessions, recordings and temporary files are closed on the way out.
    SPLITWIRE_DEBUG=1 shows tracebacks of everything.
    """
    prepare_process()
    try:
        with _ended_by_sigterm(program):
            app()
    except SplitwireError as error:
        _fail(program, str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail(program, "interrupted", _INTERRUPTED)
    except SystemExit as end:
        if _is_interruption(end):
            _fail(program, "interrupted", _INTERRUPTED)
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last place; a bug ends in one line, with the way to see more
        _fail(program, *_explain(error))


def printable(text: str) -> str:
    """The text with control and format characters, such as terminal escapes and bidi overrides, shown as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _is_interruption(end: SystemExit) -> bool:
    """Whether typer made the exit of a Ctrl-C that the command left to it; it says nothing of it itself."""
    return isinstance(end.__context__, typer.Exit) and isinstance(end.__context__.__cause__, KeyboardInterrupt)


def _explain(error: Exception) -> tuple[str, int]:
    """Message and exit code of what no module foresaw: the system's refusal with its reason, else a bug."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return f"{where}{error.strerror}. Check the path, its owner and the disk", RecordingError.exit_code
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error)):
        return "out of memory. Lower the sizes in the settings, or use a larger machine", SplitwireError.exit_code
    return f"internal error ({type(error).__name__}). Set SPLITWIRE_DEBUG=1 to see it", InternalError.exit_code


def prepare_process() -> None:
    """Sets what libraries read when they load.

    An idle process's OpenMP threads must not steal its neighbour's cores (they spin for long by default), and gRPC's
    own log, which may quote a peer, must not mix with ours.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@contextmanager
def _ended_by_sigterm(program: str) -> Iterator[None]:
    """A command that drains replaces the handler by its own.

    The clean-up may have to wait for a lock that was held where the signal came, so its time is bounded by an alarm,
    and a second SIGTERM ends the process at once.
    """

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(_CLEAN_UP_SECONDS)
        typer.echo(f"{program}: error: terminated", err=True)
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(program: str, message: str, code: int) -> None:
    if os.environ.get("SPLITWIRE_DEBUG") == "1" and sys.exc_info()[1] is not None:
        raise  # noqa: PLE0704 - called from an except block only
    typer.echo(f"{program}: error: {printable(message)}", err=True)
    sys.exit(code)
