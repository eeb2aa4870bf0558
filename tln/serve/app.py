"""The HTTP endpoint: routes, and one place where every request is checked, answered, counted and logged.

No exception leaves it: what went wrong is an answer in the API's form, and a log line without content.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import splitwire
from splitwire.logging import get_logger
from tln.serve.access import ApiKeys, check_caller, read_raw
from tln.serve.answering import streamed_answer, whole_answer
from tln.serve.engine import Engine
from tln.serve.errors import ApiError, from_failure
from tln.serve.listening import ClientGoneError, Conversation
from tln.serve.metrics import ServeMetrics
from tln.serve.prompts import Prompts, TextRequest
from tln.serve.readiness import Readiness
from tln.serve.responses import ChatForm, Form, TextForm
from tln.serve.schema import ChatBody, CompletionBody, read_body
from tln.serve.settings import ServeSettings

_log = get_logger(__name__)
_CLIENT_GONE = 499
_HEALTH = "/healthz"
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Serving:
    """All that answers need. `fingerprint` is that of the delegated layers; `tokenizing` has one thread."""

    engine: Engine
    readiness: Readiness
    prompts: Prompts
    settings: ServeSettings
    metrics: ServeMetrics
    model: str
    fingerprint: str
    tokenizing: Executor
    began: int
    keys: ApiKeys | None = None


def build_app(serving: Serving) -> FastAPI:
    """The application. No page of its own: what describes it is docs/serving.md."""
    app = FastAPI(title="tln serve", version=splitwire.__version__, openapi_url=None, docs_url=None, redoc_url=None)
    routes: tuple[tuple[str, str, Callable[[Serving, Request], Awaitable[Response]], bool], ...] = (
        ("GET", _HEALTH, _healthz, False),
        ("GET", "/metrics", _metrics, True),
        ("GET", "/v1/models", _models, True),
        ("GET", "/v1/models/{name:path}", _model, True),
        ("POST", "/v1/chat/completions", _chat, True),
        ("POST", "/v1/completions", _completions, True),
    )
    for method, path, answer, is_guarded in routes:
        app.add_route(path, _handler(serving, path, answer, is_guarded=is_guarded), methods=[method])
    app.add_exception_handler(HTTPException, functools.partial(_no_route, serving))
    return app


def _handler(
    serving: Serving, path: str, answer: Callable[[Serving, Request], Awaitable[Response]], *, is_guarded: bool
) -> Handler:
    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        try:
            if is_guarded:
                check_caller(request, serving.keys)
            response = await answer(serving, request)
        except ApiError as error:
            response = refusal(error)
        except ClientGoneError:
            response = Response(status_code=_CLIENT_GONE)
        except Exception as error:  # noqa: BLE001 - the last place; a bug must not show what it met
            _log.error("a request failed", path=path, exc_info=True)
            response = refusal(from_failure(error))
        serving.metrics.count_answer(path, response.status_code)
        seconds = round(time.perf_counter() - began, 4)
        _log.info("answer", path=path, method=request.method, status=response.status_code, seconds=seconds)
        return response

    return handle


def refusal(error: ApiError) -> Response:
    """An error in the API's form."""
    return JSONResponse(error.body(), error.status, headers=error.headers())


def too_many(serving: Serving) -> ASGIApp:
    """What a connection gets that is one too many: a refusal, after which it is closed.

    Only /healthz is answered as ever: whoever watches the server must not take a busy one for a broken one.
    """
    healthz = _handler(serving, _HEALTH, _healthz, is_guarded=False)
    error = ApiError(
        503,
        f"{serving.settings.max_connections} connections are open, as many as are served. Try again later.",
        code="too_many_connections",
        retry_after=serving.settings.retry_after_seconds,
    )

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == _HEALTH and scope["method"] in ("GET", "HEAD"):
            response = await healthz(Request(scope, receive))
        else:
            serving.metrics.count_answer("other", error.status)
            response = refusal(error)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

    return answer


async def _no_route(serving: Serving, _request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    serving.metrics.count_answer("other", status)
    message = "There is no such path here." if status == 404 else "This path does not take that method."
    return refusal(ApiError(status, message, code="unknown_url" if status == 404 else "method_not_allowed"))


async def _healthz(serving: Serving, _request: Request) -> Response:
    standing = serving.readiness.standing()
    if not standing.reason:
        return JSONResponse({"status": "ok"})
    since = standing.since.isoformat(timespec="seconds")
    return JSONResponse({"status": "unavailable", "reason": standing.reason, "since": since}, 503)


async def _metrics(serving: Serving, _request: Request) -> Response:
    return Response(generate_latest(serving.metrics.run.registry), media_type=CONTENT_TYPE_LATEST)


async def _models(serving: Serving, _request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_described(serving)]})


async def _model(serving: Serving, request: Request) -> Response:
    _check_model(serving, request.path_params["name"])
    return JSONResponse(_described(serving))


async def _chat(serving: Serving, request: Request) -> Response:
    body = read_body(ChatBody, await read_raw(request, serving.settings))
    _check_model(serving, body.model)
    texts = await _tokenized(serving, lambda: serving.prompts.of_chat(body))
    return await _answered(serving, request, body, texts, _form(serving, ChatForm, body))


async def _completions(serving: Serving, request: Request) -> Response:
    body = read_body(CompletionBody, await read_raw(request, serving.settings))
    _check_model(serving, body.model)
    texts = await _tokenized(serving, lambda: serving.prompts.of_completion(body))
    return await _answered(serving, request, body, texts, _form(serving, TextForm, body))


async def _answered(
    serving: Serving, request: Request, body: ChatBody | CompletionBody, texts: list[TextRequest], form: Form
) -> Response:
    conversation = Conversation(serving.engine, texts, request)
    num_prompt = sum(len(text.prompt) for text in texts[:: body.n or 1])
    if body.stream:
        return await streamed_answer(conversation, form, len(texts), num_prompt, wants_usage=body.wants_usage)
    return await whole_answer(conversation, form, len(texts), num_prompt)


async def _tokenized(serving: Serving, work: Callable[[], list[TextRequest]]) -> list[TextRequest]:
    return await asyncio.get_running_loop().run_in_executor(serving.tokenizing, work)


def _form(serving: Serving, kind: type[Form], body: ChatBody | CompletionBody) -> Form:
    return kind(serving.model, serving.fingerprint, serving.prompts.tokenizer, body.num_logprobs)


def _check_model(serving: Serving, name: str) -> None:
    if name != serving.model:
        raise ApiError(
            404, f"This server has the model {serving.model!r} alone.", code="model_not_found", param="model"
        )


def _described(serving: Serving) -> dict[str, Any]:
    return {"id": serving.model, "object": "model", "created": serving.began, "owned_by": "splitwire"}
