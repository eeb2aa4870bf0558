"""Every program ends in one line and the exit code of the error tree; what no module foresaw shows no content."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable

import pytest
import typer

from splitwire import console
from splitwire.errors import BundleError, SettingsError

MARKER = "quokka-marker-2291"


def ending(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Exit code and stderr of a program that raises the error."""

    def app() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        console.run(app, "tln")
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SettingsError("x is 3", remedy="use 4"), 2, "tln: error: x is 3. use 4"),
        (BundleError("cut off"), 4, "tln: error: cut off"),
        (KeyboardInterrupt(), 130, "tln: error: interrupted"),
        (ValueError(MARKER), 70, "tln: error: internal error (ValueError). Set SPLITWIRE_DEBUG=1 to see it"),
        (
            RuntimeError(f"DefaultCPUAllocator: can't allocate memory {MARKER}"),
            2,
            "tln: error: out of memory. Lower the sizes in the settings, or use a larger machine",
        ),
        (OSError(MARKER), 70, "tln: error: internal error (OSError). Set SPLITWIRE_DEBUG=1 to see it"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/x"),
            5,
            "tln: error: out/x: No space left on device. Check the path, its owner and the disk",
        ),
    ],
)
def test_one_line_and_the_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPLITWIRE_DEBUG", raising=False)
    assert ending(error, capsys) == (code, f"{line}\n")


def command_that(error: BaseException) -> Callable[[], object]:
    """A typer application whose command raises the error."""
    app = typer.Typer()

    @app.command()
    def work() -> None:
        raise error

    return lambda: app([])


def test_an_interrupted_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C reaches the program through typer, which turns it into a silent exit."""
    with pytest.raises(SystemExit) as caught:
        console.run(command_that(KeyboardInterrupt()), "tln")
    assert (caught.value.code, capsys.readouterr().err) == (130, "tln: error: interrupted\n")


@pytest.mark.parametrize("code", [0, 3, 130])
def test_an_exit_of_the_command_itself_is_left_alone(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It has said what there is to say."""
    with pytest.raises(SystemExit) as caught:
        console.run(command_that(typer.Exit(code)), "tln")
    assert (caught.value.code, capsys.readouterr().err) == (code, "")


def test_sigterm_ends_a_program_by_way_of_its_clean_up(capsys: pytest.CaptureFixture[str]) -> None:
    """What was opened is closed, and the process's own handler is back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    closed = []

    def app() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            closed.append(True)

    with pytest.raises(SystemExit) as caught:
        console.run(app, "tln")
    assert 0 < signal.alarm(0) <= 15, "a clean-up that hangs is ended"
    assert caught.value.code == 143
    assert closed
    assert capsys.readouterr().err == "tln: error: terminated\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_error_never_sends_an_escape_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told = ending(BundleError("bundle \x1b]0;x\x07\u202e\x9b\xe9 is not whole"), capsys)[1]
    assert told.strip() == r"tln: error: bundle \x1b]0;x\x07\u202e\x9b" + "\xe9 is not whole"
