"""What cannot be answered is an error in the API's form, and nothing of a request reaches a log line or a metric."""

from __future__ import annotations

import json
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from splitwire.tls import TlsFiles
from tests.net.tln.serve.conftest import WAIT_SECONDS, wait_until
from tln.serve.active import ActiveText
from ucn.settings import LimitSettings

MARKER = "xyzzy-marker-4417"
TEXT: dict[str, Any] = {"model": "tiny", "prompt": MARKER, "max_tokens": 4}


def test_bad_requests_are_refused_by_name(endpoint: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Status, code and parameter of each; the body says no more than that."""
    http, text = endpoint.http(), "/v1/completions"
    long = {"prompt": "x" * 100, "max_tokens": 40}
    cases: list[tuple[str, Any, int, str, str | None]] = [
        (text, b"{" + MARKER.encode(), 400, "invalid_json", None),
        (text, TEXT | {"temperature": "hot"}, 400, "invalid_type", "temperature"),
        (text, TEXT | {"mystery": MARKER}, 400, "unknown_parameter", "mystery"),
        (text, TEXT | {"suffix": MARKER}, 400, "unsupported_parameter", "suffix"),
        (text, TEXT | {"model": MARKER}, 404, "model_not_found", "model"),
        (text, TEXT | {"prompt": [999]}, 400, "invalid_value", "prompt"),
        (text, TEXT | {"n": 99}, 400, "invalid_value", "n"),
        (text, TEXT | long, 400, "context_length_exceeded", "prompt"),
        (text, TEXT | {"prompt": "x" * 128, "max_tokens": None}, 400, "context_length_exceeded", "prompt"),
        (text, b" " * (1 << 20) + b"{}", 413, "body_too_large", None),
        ("/v1/chat/completions", {"model": "tiny"}, 400, "missing_required_parameter", "messages"),
        ("/v1/embeddings", {}, 404, "unknown_url", None),
    ]
    with caplog.at_level(logging.DEBUG):
        for path, body, status, code, param in cases:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = http.post(path, content=raw, headers={"Content-Type": "application/json"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
            assert error["message"]
            assert error["type"]
    assert http.post(text, content=b"{}").json()["error"]["code"] == "unsupported_media_type"
    assert http.get(text).status_code == 405
    assert http.get("/healthz", headers={"Host": "evil.example"}).status_code == 200
    answer = http.get("/v1/models", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")
    assert MARKER not in caplog.text
    assert MARKER not in http.get("/metrics").text


def test_what_is_no_http_is_answered_and_ended(endpoint: Any) -> None:
    """In the API's form, also in the middle of a body; a wish for another protocol is not heard."""
    url = urlsplit(endpoint.url)
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked += b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}"
    for sent in (b"\x16\x03\x01\r\n\r\n", chunked):
        with socket.create_connection((url.hostname, url.port), WAIT_SECONDS) as asked:
            asked.sendall(sent)
            head, _, body = b"".join(iter(lambda: asked.recv(1 << 16), b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_http"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert endpoint.http().get("/healthz", headers=upgrade).json() == {"status": "ok"}


def test_a_prompt_is_in_no_log_line_and_no_metric(endpoint: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is the answer."""
    with caplog.at_level(logging.DEBUG):
        text = endpoint.client().completions.create(**TEXT, echo=False).choices[0].text
        list(endpoint.client().completions.create(**TEXT, stream=True))
    for said in (caplog.text, endpoint.http().get("/metrics").text):
        assert MARKER not in said
        assert not text.isascii() or text not in said or len(text) < 3


def test_a_template_that_refuses(endpoint: Any) -> None:
    """As the template says; without one the chat is refused."""
    tokenizer, client = endpoint.parts.prompts.tokenizer, endpoint.client()
    messages: Any = [{"role": "user", "content": "x"}]
    for template, match in (("{{ raise_exception('users only') }}", "users only"), (None, "no chat template")):
        tokenizer.chat_template = template
        with pytest.raises(openai.BadRequestError, match=match):
            client.chat.completions.create(model="tiny", messages=messages)


def test_keys(start_node: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path) -> None:
    """401 without the key on every path but /healthz; an answer with it, whatever the host is called."""
    file, key = tmp_path / "keys", "a-key-of-enough-characters"
    file.touch(mode=0o600)
    file.write_text(f"{key}\n")
    endpoint = serve(start_node(), {"api_key_file": str(file)})
    with pytest.raises(openai.AuthenticationError) as raised:
        endpoint.client("a-wrong-key-of-some-length").models.list()
    assert raised.value.code == "invalid_api_key"
    assert endpoint.http().get("/metrics").status_code == 401
    assert endpoint.http().get("/healthz").status_code == 200
    answer = endpoint.client(key).completions.create(model="tiny", prompt="x", max_tokens=2)
    assert answer.usage is not None


def test_https(start_node: Callable[..., Any], serve: Callable[..., Any], pki: dict[str, TlsFiles]) -> None:
    """With a certificate, and with nothing else."""
    files = pki["ucn"]
    endpoint = serve(start_node(), {"certificate": str(files.certificate), "certificate_key": str(files.key)})
    address = endpoint.url.removeprefix("http://")
    with httpx2.Client(verify=ssl.create_default_context(cafile=str(files.ca))) as client:
        assert client.get(f"https://{address}/healthz").json() == {"status": "ok"}
    with pytest.raises(httpx2.HTTPError):
        endpoint.http().get("/healthz")


def test_a_full_queue(start_node: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """One runs, one waits, the third is told when to come again; both others are answered."""
    endpoint = serve(start_node(), {"max_running": 1, "max_waiting": 1})
    endpoint.slow_down(0.03)
    client = endpoint.client()
    with ThreadPoolExecutor(2) as pool:
        asked = {"model": "tiny", "prompt": "x", "max_tokens": 20, "temperature": 0}
        kept = [pool.submit(client.completions.create, **asked) for _ in range(2)]
        wait_until(lambda: endpoint.running() == 1 and len(endpoint.parts.engine.batch.waiting) == 1)
        with pytest.raises(openai.RateLimitError) as raised:
            client.completions.create(**TEXT)
        assert [future.result().choices[0].finish_reason for future in kept] == ["length", "length"]
    assert raised.value.code == "queue_full"
    assert raised.value.response.headers["Retry-After"] == "1"


def test_a_node_with_fewer_sessions_than_places(start_node: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """Fewer texts run at once; all are answered."""
    endpoint = serve(start_node(limits=LimitSettings(max_sessions=2)), {"max_running": 4})
    endpoint.slow_down(0.01)
    client = endpoint.client()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: client.completions.create(**TEXT, temperature=0), range(6)))
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert endpoint.parts.engine._links.num_open == 2


def test_a_node_without_room_for_a_prompt(start_node: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """429 with the time to come again; a shorter prompt is answered by the same session."""
    endpoint = serve(start_node(limits=LimitSettings(max_cache_bytes=1 << 15)))
    client = endpoint.client()
    with pytest.raises(openai.RateLimitError) as raised:
        client.completions.create(model="tiny", prompt="x" * 100, max_tokens=2)
    assert raised.value.code == "budget_exhausted"
    assert raised.value.response.headers["Retry-After"] == "2"
    assert client.completions.create(model="tiny", prompt="x", max_tokens=2).usage is not None


def test_a_node_that_goes_and_comes_back(start_node: Callable[..., Any], serve: Callable[..., Any]) -> None:
    """503 with the cause while it is away, also at /healthz; afterwards answers as before."""
    node = start_node()
    endpoint = serve(node)
    client, http = endpoint.client(), endpoint.http()
    before = client.completions.create(**TEXT, temperature=0).choices[0].text
    node.stop()
    wait_until(lambda: http.get("/healthz").status_code == 503)
    with pytest.raises(openai.InternalServerError) as raised:
        client.completions.create(**TEXT)
    assert (raised.value.status_code, raised.value.code) == (503, "untrusted_node_unavailable")
    node.start()
    wait_until(lambda: http.get("/healthz").status_code == 200)
    assert client.completions.create(**TEXT, temperature=0).choices[0].text == before


def test_a_bug_ends_its_own_text_and_tells_nothing(
    endpoint: Any, unsplit: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with a fixed text; whoever was in the same steps is answered."""
    choose = ActiveText.choose

    def fail(text: ActiveText, logits: Any) -> Any:
        if text.num_prompt == len(MARKER) and text.num_new == 3:
            raise ValueError(MARKER)
        return choose(text, logits)

    monkeypatch.setattr(ActiveText, "choose", fail)
    endpoint.slow_down(0.01)
    client = endpoint.client()
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.DEBUG):
        other = pool.submit(client.completions.create, model="tiny", prompt="other", max_tokens=20, temperature=0)
        with pytest.raises(openai.InternalServerError) as raised:
            client.completions.create(**TEXT, temperature=0)
        assert other.result().choices[0].text == unsplit.text("other", 20)
    assert raised.value.code == "internal_error"
    assert MARKER not in str(raised.value.body)
    assert MARKER not in "".join(record.getMessage() for record in caplog.records)
