"""Errors in the form of the OpenAI API, and what becomes of ours.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

| status | when |
|---|---|
| 400 | a body that is not JSON; an unknown, unusable or unsupported field; a prompt beyond the context window |
| 401 | no API key, or a wrong one |
| 404 | another model, or another path |
| 413 | a body that is too large |
| 429 | the queue is full, or the untrusted node has no room: `Retry-After` says when to come again |
| 502 | the untrusted node answered what the contract does not allow |
| 503 | the untrusted node is unreachable, or this program is stopping |
| 500 | a bug, or a recording that cannot be written |
"""

from __future__ import annotations

from typing import Any, NamedTuple

from splitwire.errors import (
    AuthError,
    FrameError,
    HandshakeError,
    LimitError,
    PeerError,
    RecordingError,
    ReplayError,
    SplitwireError,
)


class ApiError(Exception):
    """What a client is answered instead of what it asked for."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {"error": {"message": self.message, "type": self._kind(), "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def _kind(self) -> str:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A request that would have to be another one."""
    return ApiError(400, message, code=code, param=param)


def stopping() -> ApiError:
    """This program is on its way out."""
    return ApiError(503, "This server is stopping. Try another one, or later.", code="stopping", retry_after=5)


def from_failure(error: BaseException, retry_after: int = 2) -> ApiError:
    """What a failure of the engine is to a client. Its text holds no content, and no more of the peer's than a line."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, SplitwireError):
        return ApiError(500, f"Internal error ({type(error).__name__}).", code="internal_error")
    kind = next(kind for kind in _FAILURES if isinstance(error, kind.errors))
    again = retry_after if kind.status in _TEMPORARY else None
    return ApiError(kind.status, f"{kind.text}: {error}", code=kind.code, retry_after=again)


class _Failure(NamedTuple):
    errors: type[SplitwireError] | tuple[type[SplitwireError], ...]
    status: int
    code: str
    text: str


_TEMPORARY = (429, 503)
_FAILURES = (
    _Failure(LimitError, 429, "budget_exhausted", "The untrusted node has no room"),
    _Failure(RecordingError, 500, "recording_failed", "The recording failed, so nothing may cross"),
    _Failure((FrameError, ReplayError, HandshakeError), 502, "untrusted_node_failed", "The untrusted node failed"),
    _Failure(AuthError, 502, "untrusted_node_failed", "The untrusted node was not accepted, or did not accept us"),
    _Failure(PeerError, 503, "untrusted_node_unavailable", "The untrusted node is not available"),
    _Failure(SplitwireError, 500, "internal_error", "The request failed"),
)
