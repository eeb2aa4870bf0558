"""One log line and one count a call, whatever way it ends."""

from __future__ import annotations

import time
from typing import Any

import grpc

from splitwire.logging import get_logger
from ucn import call as calls
from ucn.interceptors.wrapping import Around, Call
from ucn.metrics import UcnMetrics

_log = get_logger("ucn")


def observe(metrics: UcnMetrics) -> Around:
    """Counts calls by method and code, and logs method, peer, code, seconds, bytes and session hash."""

    async def around(method: str, call: Call, context: Any) -> Any:
        facts = calls.begin(method)
        started = time.monotonic()
        code = grpc.StatusCode.CANCELLED
        try:
            response = await call()
        except grpc.aio.AbortError:
            code = _sent_code(context)
            raise
        else:
            code = grpc.StatusCode.OK
            return response
        finally:
            metrics.count_call(method, code.name)
            _log_call(facts, code, time.monotonic() - started)

    return around


def _sent_code(context: Any) -> grpc.StatusCode:
    code = context.code()
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _log_call(facts: calls.CallFacts, code: grpc.StatusCode, seconds: float) -> None:
    _log.info(
        "call",
        method=facts.method,
        peer=facts.peer,
        code=code.name,
        seconds=round(seconds, 6),
        bytes_in=facts.num_bytes_in,
        bytes_out=facts.num_bytes_out,
        requests=facts.num_requests,
        session=facts.session,
    )
