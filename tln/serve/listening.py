"""Brings what the engine's thread tells about the texts of one request to the event loop that answers it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from starlette.requests import Request

from tln.serve.active import ActiveText, Ended, Event, Failed, Reader
from tln.serve.engine import Engine
from tln.serve.prompts import TextRequest


class ClientGoneError(Exception):
    """Nobody reads the answer any more."""


class Conversation:
    """The texts of one request while they are generated. Leaving the block ends what is not over.

    With `request` it also listens for the client: once it is gone, waiting raises ClientGoneError.
    """

    def __init__(self, engine: Engine, texts: list[TextRequest], request: Request) -> None:
        self._engine = engine
        self._texts = texts
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._active: list[ActiveText] = []
        self._num_open = len(texts)

    async def __aenter__(self) -> Self:
        """ApiError when the engine does not take the texts."""
        self._active = self._engine.submit(self._texts, [self._reader(index) for index in range(len(self._texts))])
        self._gone = asyncio.create_task(self._wait_gone())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gone.cancel()
        if self._num_open:
            self._engine.cancel(self._active)
        self._active = []  # they know their readers, and those know this

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Index of the text and event, until all texts are over. Failed is the last one, whichever text it is of."""
        while self._num_open:
            index, event = await self._next()
            if isinstance(event, Ended | Failed):
                self._num_open -= 1
            yield index, event
            if isinstance(event, Failed):
                return

    async def _next(self) -> tuple[int, Event]:
        if not self._events.empty():
            return self._events.get_nowait()
        coming = asyncio.create_task(self._events.get())
        try:
            await asyncio.wait({coming, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise ClientGoneError
            return coming.result()
        finally:
            coming.cancel()

    def _reader(self, index: int) -> Reader:
        def read(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody answers any more
                self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

        return read

    async def _wait_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
