"""Logs are JSON lines with ids and numbers; the text of an exception never gets in."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from splitwire.logging import configure, get_logger

MARKER = "planted-marker-text"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail() -> None:
    raise ValueError(MARKER)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_program_level_and_time() -> None:
    stream = io.StringIO()
    configure("ucn", stream=stream)
    get_logger().info("call ended", method="OpenSession", seconds=0.25)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "call ended", "level": "info", "method": "OpenSession", "program": "ucn", "seconds": 0.25}


def test_lines_of_other_libraries_take_the_same_form() -> None:
    stream = io.StringIO()
    configure("ucn", stream=stream)
    logging.getLogger("grpc").warning("port %d is busy", 7700)
    (line,) = lines(stream)
    assert (line["event"], line["program"], line["level"]) == ("port 7700 is busy", "ucn", "warning")


def test_the_text_of_an_exception_is_never_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPLITWIRE_DEBUG", raising=False)
    stream = io.StringIO()
    configure("ucn", stream=stream)
    try:
        fail()
    except ValueError as error:
        get_logger().exception("step failed", step=3)
        get_logger().error("step failed", exc_info=error)
        logging.getLogger("other").exception("callback failed")
    assert MARKER not in stream.getvalue()
    assert "Traceback" not in stream.getvalue()
    assert [line["error"] for line in lines(stream)] == ["ValueError"] * 3


def test_debugging_shows_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITWIRE_DEBUG", "1")
    stream = io.StringIO()
    configure("ucn", stream=stream)
    try:
        fail()
    except ValueError:
        get_logger().exception("step failed")
    assert MARKER in lines(stream)[0]["exception"]


def test_levels_below_the_chosen_one_are_left_out() -> None:
    stream = io.StringIO()
    configure("ucn", level="warning", stream=stream)
    get_logger().info("quiet")
    get_logger().warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_configuring_again_replaces_the_handler() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("ucn", stream=first)
    configure("ucn", stream=second)
    get_logger().info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_a_terminal_gets_readable_lines() -> None:
    stream = Terminal()
    configure("ucn", stream=stream)
    get_logger().info("listening", port=7700)
    assert "listening" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
