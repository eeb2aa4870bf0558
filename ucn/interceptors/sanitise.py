"""Turns what a handler raises into a status, so that the text of an unknown exception never reaches a peer or a log."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import grpc

from splitwire.errors import PeerError
from splitwire.logging import get_logger
from ucn import call as calls
from ucn.interceptors.wrapping import Call
from ucn.status import peer_status

_log = get_logger("ucn")


async def sanitise(_method: str, call: Call, context: Any) -> Any:
    """Ends the call with the status of the error; an abort that is already under way passes."""
    try:
        return await call()
    except grpc.aio.AbortError:
        raise
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # reading or writing failed: there is nobody left to tell
    except Exception as error:  # noqa: BLE001 - the boundary: nothing may pass it unmapped
        if not isinstance(error, PeerError):
            report(error)
        status = peer_status(error)
    return await context.abort(status.code, status.details, status.trailing_metadata)


def report(error: BaseException) -> None:
    """Logs the class and the place of an unknown error. Its text may hold content, so it stays out."""
    place = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    _log.error("internal_error", error=type(error).__name__, place=place[-8:], session=calls.current_session())
