"""A TCP connection that can be cut and frozen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

WAIT_SECONDS = 10


@dataclass
class Cable:
    """Forwards TCP to a port. `cut` drops every connection; while `is_out` new ones are dropped too.

    `freeze` lets nothing through and ends nothing, until `thaw`. `cut_after_bytes` cuts once, when so many bytes have
    gone to the server since it was set.
    """

    loop: asyncio.AbstractEventLoop
    target: int
    is_out: bool = False
    cut_after_bytes: int | None = None
    num_connections: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _flows: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> str:
        self.thaw()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self.cut()
        self._run(self._close())

    def cut(self) -> None:
        self._run(self._cut())

    def freeze(self) -> None:
        self.loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        self.loop.call_soon_threadsafe(self._flows.set)

    async def _close(self) -> None:
        self._server.close()

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_out:
            writer.transport.abort()
            return
        self.num_connections += 1
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, server_writer]
        await asyncio.gather(
            self._pump(reader, server_writer, counts=True), self._pump(server_reader, writer), return_exceptions=True
        )
        writer.close()
        server_writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool = False) -> None:
        while data := await source.read(1 << 16):
            if counts and self.cut_after_bytes is not None:
                self.cut_after_bytes -= len(data)
                if self.cut_after_bytes <= 0:
                    self.cut_after_bytes = None
                    await self._cut()
                    return
            await self._flows.wait()
            sink.write(data)
            await sink.drain()
