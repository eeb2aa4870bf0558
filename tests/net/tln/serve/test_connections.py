"""Connections are bounded in number, and whoever holds one without a use for it is let go."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tests.net.tln.serve.conftest import WAIT_SECONDS, wait_until

TEXT: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 4}


def test_a_client_that_does_not_finish_asking_is_let_go(
    start_node: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    """Before its first request, within a head, after an answer, and within a body; who waits for an answer is not."""
    endpoint = serve(start_node(), {"body_seconds": 0.3})
    url, healthy = urlsplit(endpoint.url), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body += b"Content-Length: 9\r\n\r\n{"
    for sent, status in ((b"", b""), (healthy[:-2], b""), (healthy + healthy[:9], b" 200 "), (body, b" 408 ")):
        with socket.create_connection((url.hostname, url.port), WAIT_SECONDS) as asked:
            asked.sendall(sent)
            answer = b"".join(iter(lambda: asked.recv(1 << 16), b""))
        assert answer[8:13] == status
    endpoint.slow_down(0.1)
    assert endpoint.client().completions.create(**TEXT | {"max_tokens": 8}).usage is not None


def test_a_connection_too_many_is_told_to_come_again(start_node: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """Two are served; two more are answered 503, but for their question about health; the fifth is closed."""
    endpoint = serve(start_node(), {"max_connections": 2})
    url = urlsplit(endpoint.url)

    def connected() -> socket.socket:
        return socket.create_connection((url.hostname, url.port), WAIT_SECONDS)

    with ExitStack() as stack:
        held = [stack.enter_context(connected()) for _ in range(2)]
        answer = httpx2.get(f"{endpoint.url}/v1/models", timeout=WAIT_SECONDS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_connections")
        assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("1", "close")
        healthy = httpx2.get(f"{endpoint.url}/healthz", timeout=WAIT_SECONDS)
        assert (healthy.status_code, healthy.json(), healthy.headers["Connection"]) == (200, {"status": "ok"}, "close")
        refused = [stack.enter_context(connected()) for _ in range(2)]
        assert stack.enter_context(connected()).recv(1) == b"", "closed without a word"
        assert refused[0].recv(1) == b"", "closed since it asked for nothing in time"
        held[0].close()
        wait_until(lambda: httpx2.get(f"{endpoint.url}/v1/models", timeout=WAIT_SECONDS).status_code == 200)
    assert 'tln_serve_answers_total{endpoint="other",status="503"}' in endpoint.http().get("/metrics").text
