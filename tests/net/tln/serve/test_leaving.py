"""Clients that go, servers that end: what nobody reads is not computed, and what was begun is finished."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.net.tln.serve.conftest import WAIT_SECONDS, Endpoint, wait_until
from tln.serve import server


def cache_bytes(node: Any) -> int:
    """Bytes of key-value caches that the untrusted node holds."""
    return int(node.server.registry.get_sample_value("ucn_cache_bytes") or 0)


def texts(endpoint: Endpoint, outcome: str) -> float:
    """Texts that ended so."""
    registry = endpoint.parts.metrics.run.registry
    return registry.get_sample_value("tln_serve_texts_total", {"outcome": outcome}) or 0.0


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_takes_its_text_along(
    start_node: Callable[..., Any], serve: Callable[..., Endpoint], unsplit: Any, *, is_streamed: bool
) -> None:
    """Its remote cache is freed, and the others answer as they would have."""
    node = start_node()
    endpoint = serve(node)
    endpoint.slow_down(0.02)
    client = endpoint.client()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, model="tiny", prompt="other", max_tokens=40, temperature=0)
        if is_streamed:
            stream = client.completions.create(model="tiny", prompt="gone", max_tokens=100, temperature=0, stream=True)
            next(iter(stream))
            wait_until(lambda: endpoint.running() == 2)
            stream.close()
        else:
            with leaving(endpoint, b'{"model": "tiny", "prompt": "gone", "max_tokens": 100, "temperature": 0}'):
                wait_until(lambda: endpoint.running() == 2)
        wait_until(lambda: texts(endpoint, "cancelled") == 1)
        assert other.result().choices[0].text == unsplit.text("other", 40)
    wait_until(lambda: cache_bytes(node) == 0)
    assert endpoint.running() == 0


def test_a_text_that_is_over_holds_no_caches(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever still holds the text: caches must not wait for a collection of garbage."""
    engine, kept = endpoint.parts.engine, []
    submit = engine.submit

    def keep(*arguments: Any) -> Any:
        kept.extend(submit(*arguments))
        return kept[-1:]

    monkeypatch.setattr(engine, "submit", keep)
    client = endpoint.client()
    client.completions.create(model="tiny", prompt="x", max_tokens=2)
    with client.completions.create(model="tiny", prompt="x", max_tokens=100, stream=True) as stream:
        next(iter(stream))
    wait_until(lambda: len(kept) == 2 and endpoint.running() == 0)
    assert [hasattr(text, "caches") for text in kept] == [False, False]


def leaving(endpoint: Endpoint, body: bytes) -> socket.socket:
    """A connection that has asked, and closes when its block ends."""
    url = urlsplit(endpoint.url)
    asked = socket.create_connection((url.hostname, url.port))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    asked.sendall(head.encode() + body)
    return asked


def test_a_text_that_waits_may_leave_too(start_node: Callable[..., Any], serve: Callable[..., Endpoint]) -> None:
    """Before it has a place."""
    endpoint = serve(start_node(), {"max_running": 1})
    endpoint.slow_down(0.03)
    client = endpoint.client()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.completions.create, model="tiny", prompt="x", max_tokens=30, temperature=0)
        wait_until(lambda: endpoint.running() == 1)
        with leaving(endpoint, b'{"model": "tiny", "prompt": "gone"}'):
            wait_until(lambda: len(endpoint.parts.engine.batch.waiting) == 1)
        wait_until(lambda: texts(endpoint, "cancelled") == 1)
        assert first.result().choices[0].finish_reason == "length"


def test_draining_finishes_what_runs_and_takes_nothing_new(
    start_node: Callable[..., Any], serve: Callable[..., Endpoint], unsplit: Any
) -> None:
    """New requests are answered 503 meanwhile; then the sessions are closed."""
    node = start_node()
    endpoint = serve(node)
    endpoint.slow_down(0.03)
    client, http = endpoint.client(), endpoint.http()
    stream = client.completions.create(model="tiny", prompt="last", max_tokens=30, temperature=0, stream=True)
    text = next(iter(stream)).choices[0].text
    endpoint.drain()
    wait_until(lambda: http.get("/healthz").status_code == 503)
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(model="tiny", prompt="late")
    assert (raised.value.status_code, raised.value.code) == (503, "stopping")
    assert text + "".join(chunk.choices[0].text for chunk in stream) == unsplit.text("last", 30)
    endpoint.close()
    wait_until(lambda: len(node.server.table) == 0)


def test_the_time_to_drain_is_bounded(start_node: Callable[..., Any], serve: Callable[..., Endpoint]) -> None:
    """What is not done then ends with an error event."""
    endpoint = serve(start_node(), {"drain_seconds": 0.2})
    endpoint.slow_down(0.05)
    stream = endpoint.client().completions.create(model="tiny", prompt="x", max_tokens=100, temperature=0, stream=True)
    next(iter(stream))
    endpoint.drain()
    with pytest.raises(openai.APIError, match="stopping"):
        list(stream)
    endpoint.ended.result(20)


def test_an_exchange_that_is_stuck_does_not_hold_the_end(
    start_node: Callable[..., Any], serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untrusted node does not answer, and has two minutes to: the request ends, and so does the server."""
    monkeypatch.setattr(server, "_CLOSE_SECONDS", 0.2)
    node, is_over = start_node(), threading.Event()
    endpoint = serve(node, {"drain_seconds": 0.2})
    client = endpoint.client()
    client.completions.create(model="tiny", prompt="x", max_tokens=1)
    executor = node.server._node.transformer_executor
    stuck = asyncio.run_coroutine_threadsafe(executor.run(is_over.wait), node.loop)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.completions.create, model="tiny", prompt="x", max_tokens=1)
        wait_until(lambda: endpoint.running() == 1)
        try:
            endpoint.drain()
            with pytest.raises(openai.InternalServerError) as raised:
                asked.result(WAIT_SECONDS)
            endpoint.ended.result(WAIT_SECONDS)
            pool.submit(endpoint.stack.close).result(WAIT_SECONDS)
        finally:
            is_over.set()
    assert raised.value.code == "stopping"
    stuck.result(WAIT_SECONDS)


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one only asks."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    stopping = asyncio.Event()
    server._on_signal(stopping)
    assert (stopping.is_set(), codes) == (True, [])
    server._on_signal(stopping)
    assert codes == [143]
