"""`tln serve` in this process, over real HTTP and a real untrusted node, with the openai client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import openai
import pytest
import torch

from splitwire.backbone import ModelSettings, load_tokenizer, load_whole
from splitwire.tls import TlsFiles
from tln.connection import ConnectionSettings
from tln.serve import server
from tln.serve.app import Serving
from tln.serve.settings import ServeSettings
from tln.settings import TlnSettings
from tln.stack_settings import StackSettings

MODEL = "tiny"
WAIT_SECONDS = 20


@dataclass
class Endpoint:
    """A running endpoint; `close` ends it as SIGTERM does."""

    parts: Serving
    model: ModelSettings
    url: str
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event
    ended: Future[None]
    stack: ExitStack
    clients: list[Any] = field(default_factory=list)

    def client(self, key: str = "none") -> openai.OpenAI:
        """A client that does not try again."""
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=WAIT_SECONDS)
        self.clients.append(made)
        return made

    def http(self) -> httpx2.Client:
        """A plain HTTP client."""
        made = httpx2.Client(base_url=self.url, timeout=WAIT_SECONDS)
        self.clients.append(made)
        return made

    def slow_down(self, seconds: float) -> None:
        """Each step takes so much longer from now on."""
        layers = self.parts.engine.batch.layers
        tail = layers.tail

        def slowly(*arguments: Any) -> torch.Tensor:
            time.sleep(seconds)
            return tail(*arguments)

        layers.tail = slowly  # type: ignore[method-assign]

    def running(self) -> int:
        """Texts in the batch."""
        return len(self.parts.engine.batch.running)

    def drain(self) -> None:
        """What SIGTERM does."""
        self.loop.call_soon_threadsafe(self.stopping.set)

    def close(self) -> None:
        """Ends it, unless it has ended."""
        for client in self.clients:
            client.close()
        self.drain()
        self.ended.result(WAIT_SECONDS)
        self.stack.close()


@pytest.fixture
def serve(loop: asyncio.AbstractEventLoop, pki: dict[str, TlsFiles]) -> Iterator[Callable[..., Endpoint]]:
    """serve(node, serve={...}, **sections) -> an endpoint over the node."""
    running: list[Endpoint] = []

    def start(node: Any, serve: dict[str, Any] | None = None, **sections: Any) -> Endpoint:
        connection = ConnectionSettings(
            address=node.settings.listen, tls=pki["tln"], connect_timeout_seconds=1.0, retry_seconds=5.0
        )
        own: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "model_name": MODEL,
            "retry_after_seconds": 1,
            "check_seconds": 0.2,
        }
        given: dict[str, Any] = {
            "model": node.settings.model,
            "connection": connection,
            "stack": StackSettings(max_cache_positions=128),
            "serve": ServeSettings(**own | (serve or {})),
        }
        settings = replace(TlnSettings(), **given | sections)
        stack = ExitStack()
        listening = stack.enter_context(server.listen(settings.serve.listen))
        parts = stack.enter_context(server.serving(settings))
        stopping, ready = asyncio.Event(), threading.Event()
        ended = asyncio.run_coroutine_threadsafe(server.run_server(parts, listening, stopping, ready.set), loop)
        assert ready.wait(WAIT_SECONDS)
        host, port = listening.getsockname()
        running.append(Endpoint(parts, settings.model, f"http://{host}:{port}", loop, stopping, ended, stack))
        return running[-1]

    yield start
    for endpoint in running:
        endpoint.close()


@pytest.fixture
def endpoint(start_node: Callable[..., Any], serve: Callable[..., Endpoint]) -> Endpoint:
    """An endpoint over the tiny llama, whose prompts go through in parts of 16."""
    return serve(start_node(), {"prefill_positions": 16})


@dataclass(frozen=True)
class Unsplit:
    """The whole model, for comparison."""

    tokenizer: Any
    model: Any

    def tokens(self, prompt: str, num_new: int) -> list[int]:
        """Greedy tokens after a prompt."""
        inputs = self.tokenizer(prompt, return_tensors="pt")
        output = self.model.generate(**inputs, max_new_tokens=num_new, do_sample=False)
        return output[0, inputs["input_ids"].shape[1] :].tolist()

    def text(self, prompt: str, num_new: int) -> str:
        """The same as text."""
        return self.tokenizer.decode(self.tokens(prompt, num_new), skip_special_tokens=True)


@pytest.fixture(scope="session")
def unsplit(tiny_model: Callable[[str], Any]) -> Unsplit:
    """The whole tiny llama."""
    settings = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)
    return Unsplit(load_tokenizer(settings), load_whole(settings))


def wait_until(condition: Callable[[], bool]) -> None:
    """Fails when it takes long."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
