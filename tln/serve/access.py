"""Who may call, and how much they may send.

With a key file every path but /healthz needs `Authorization: Bearer KEY`. Without one the server is on loopback, where
any web page that the user visits could reach it too: so the Host must be a loopback name (no DNS rebinding), and a body
must say that it is JSON (no cross-site form). Nothing of a request is logged but its route, the status and the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from splitwire.errors import SettingsError
from tln.serve.errors import ApiError, bad_request
from tln.serve.settings import ServeSettings

_MIN_KEY_LENGTH = 16
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class ApiKeys:
    """Digests of the keys that may call; compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode("utf-8")).digest() for key in keys]

    def allows(self, authorization: str) -> bool:
        """Whether the header carries one of the keys."""
        scheme, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def load_keys(path: Path) -> ApiKeys:
    """The keys of a file, one a line. SettingsError when others can read it, or a key is short."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read().decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason, remedy = "it is not ASCII", "write keys of letters, digits and signs into it, one a line"
        if isinstance(error, OSError):
            reason, remedy = str(error.strerror), "check the path"
        raise SettingsError(f"serve.api_key_file {path} cannot be read: {reason}", remedy=remedy) from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise SettingsError(
            f"serve.api_key_file {path} has mode {stat.S_IMODE(status.st_mode):o}: others can read it",
            remedy=f"chmod 600 {path}, and make a new key if somebody may have seen it",
        )
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys or any(len(key) < _MIN_KEY_LENGTH for key in keys):
        raise SettingsError(
            f"serve.api_key_file {path} has no key, or one of fewer than {_MIN_KEY_LENGTH} characters",
            remedy=f"write for instance the output of `openssl rand -hex 32` into it, with umask 077: {path}",
        )
    return ApiKeys(keys)


def check_caller(request: Request, keys: ApiKeys | None) -> None:
    """ApiError 401 without a key that is due, 403 for a host that is not this machine."""
    if keys is not None:
        if not keys.allows(request.headers.get("authorization", "")):
            raise ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
        return
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rsplit(":", 1)[0]
    if name.lower() not in _LOCAL_NAMES:
        raise ApiError(403, "Without an API key only this machine is served, by a loopback name.", code="wrong_host")


async def read_raw(request: Request, settings: ServeSettings) -> bytes:
    """The body of a request; ApiError when it is not declared as JSON, too large, or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise bad_request("The Content-Type is not application/json.", code="unsupported_media_type")
    too_large = ApiError(413, f"The body exceeds {settings.max_body_bytes} bytes.", code="body_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > settings.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > settings.max_body_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"The body took over {settings.body_seconds} seconds.", code="body_timeout") from None
    except ClientDisconnect:
        raise bad_request("The body is incomplete.", code="incomplete_body") from None
    return bytes(body)
