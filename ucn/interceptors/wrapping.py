"""Puts a function around a handler of any arity, so that each interceptor is one function and not four."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Call = Callable[[], Awaitable[Any]]
Around = Callable[[str, Call, Any], Awaitable[Any]]
"""(method, call, context) -> the call's response."""


class AroundInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Runs `around` around every call of every service on the server."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The handler of the call, wrapped; None stays None (the method is unknown)."""
        handler = await continuation(details)
        return None if handler is None else wrap(handler, details.method, self._around)


def wrap(handler: Any, method: str, around: Around) -> Any:
    """The same handler with `around` in front of its behaviour."""
    kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
    behaviour = getattr(handler, kind)

    async def unary(request: Any, context: Any) -> Any:
        return await around(method, lambda: behaviour(request, context), context)

    async def streaming(request: Any, context: Any) -> None:
        await around(method, lambda: _exhaust(behaviour(request, context), context), context)

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        streaming if handler.response_streaming else unary,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


async def _exhaust(result: Any, context: Any) -> None:
    """Sends what a generator yields; a plain coroutine writes by itself."""
    if not hasattr(result, "__aiter__"):
        await result
        return
    async for message in result:
        await context.write(message)


def _arity(is_streaming: bool) -> str:
    return "stream" if is_streaming else "unary"
