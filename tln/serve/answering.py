"""Answers one request: whole, or as a stream of events.

A stream begins with its first piece of text, so that what fails before that is an HTTP error like any other; what fails
later is an error event, and the stream ends without [DONE].
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tln.serve.active import Ended, Event, Failed
from tln.serve.errors import from_failure
from tln.serve.listening import Conversation
from tln.serve.responses import DONE, ChoiceText, Form, event
from tln.serve.text import Piece


class EventStream(Response):
    """Server-sent events as they come. The conversation behind them ends with the response, however that ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the interface
        """Sends them."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events) as events:  # type: ignore[type-var]
            async for part in events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def whole_answer(conversation: Conversation, form: Form, num_texts: int, num_prompt: int) -> Response:
    """One body, once all texts are over. ApiError when one fails."""
    choices = [ChoiceText() for _ in range(num_texts)]
    async with conversation:
        async for index, told in conversation.events():
            choice = choices[index]
            if isinstance(told, Piece):
                choice.text += told.text
                choice.tokens += told.tokens
            elif isinstance(told, Ended):
                choice.finish_reason, choice.num_tokens = told.reason, told.num_tokens
            else:
                raise from_failure(told.error)
    return JSONResponse(form.whole(choices, num_prompt), headers={"Cache-Control": "no-store"})


async def streamed_answer(
    conversation: Conversation, form: Form, num_texts: int, num_prompt: int, *, wants_usage: bool
) -> Response:
    """A stream that has begun. ApiError when it fails before."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(conversation)
        told = conversation.events()
        first = await anext(told)
        if isinstance(first[1], Failed):
            raise from_failure(first[1].error)
        held = stack.pop_all()
    return EventStream(_events(held, form, first, told, num_texts, num_prompt if wants_usage else None))


async def _events(
    stack: contextlib.AsyncExitStack,
    form: Form,
    first: tuple[int, Event],
    told: AsyncIterator[tuple[int, Event]],
    num_texts: int,
    num_prompt: int | None,
) -> AsyncIterator[bytes]:
    async with stack:
        more: dict[str, Any] = {} if num_prompt is None else {"usage": None}
        for index in range(num_texts):
            for opening in form.begin(index):
                yield event(opening | more)
        num_new = 0
        async for index, each in _chained(first, told):
            if isinstance(each, Piece):
                yield event(form.piece(index, each.text, each.tokens) | more)
            elif isinstance(each, Ended):
                num_new += each.num_tokens
                yield event(form.end(index, each.reason) | more)
            else:
                yield event(from_failure(each.error).body())
                return
        if num_prompt is not None:
            yield event(form.used(num_prompt, num_new))
        yield DONE


async def _chained(
    first: tuple[int, Event], rest: AsyncIterator[tuple[int, Event]]
) -> AsyncIterator[tuple[int, Event]]:
    yield first
    async for each in rest:
        yield each
