"""Structured logs on stderr: JSON lines when it is not a terminal, readable lines when it is.

A log line carries ids and numbers, never content. Exceptions are logged by their type only, since their text may quote
what a peer sent; SPLITWIRE_DEBUG=1 shows tracebacks. Records of the standard library's logging (gRPC, transformers)
take the same way.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(program: str, *, level: str = "info", stream: TextIO | None = None) -> None:
    """Sets up logging of this process; `program` is part of every line."""
    stream = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _program(program),
        _exception(debug=os.environ.get("SPLITWIRE_DEBUG") == "1"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(stream)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS.get(level, logging.INFO))


def get_logger(name: str = "splitwire") -> structlog.stdlib.BoundLogger:
    """A logger: an event name in words, then key=value pairs."""
    return structlog.stdlib.get_logger(name)


def _renderer(stream: TextIO) -> Processor:
    if stream.isatty():
        return structlog.dev.ConsoleRenderer()
    return structlog.processors.JSONRenderer(sort_keys=True)


def _program(program: str) -> Processor:
    def add(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001 - structlog's signature
        event.setdefault("program", program)
        return event

    return add


def _exception(*, debug: bool) -> Processor:
    def reduce(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG001 - structlog's signature
        found: Any = event.pop("exc_info", None)
        if not found:
            return event
        if debug:
            return structlog.processors.format_exc_info(None, method, {**event, "exc_info": found})
        error = (
            found if isinstance(found, BaseException) else (found[1] if isinstance(found, tuple) else sys.exc_info()[1])
        )
        event["error"] = type(error).__name__
        return event

    return reduce
