"""Serves the page and its values over HTTP, from memory, in a thread of its own.

Three paths, GET and HEAD alone: the page, `/state.json`, and `/healthz`. The page is one file without outside
references, and its policy lets it load nothing but its own values. A request whose Host is a name, and not an address
or localhost, is refused, so that no other site can have a browser read it.
"""

from __future__ import annotations

import ipaddress
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from types import TracebackType
from typing import Self

from auditor.results import plain
from auditor.watch.live.history import History
from auditor.watch.settings import LivePageSettings
from auditor.watch.view import paced
from auditor.watch.watcher import WatchState
from splitwire.errors import SettingsError
from splitwire.tls import split_address

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'"
_SHOWN_SECONDS = 0.5
_TYPES = {"page.html": "text/html; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}


class LivePage:
    """The page while its scope lasts; nothing where no address is set. SettingsError when it cannot be used."""

    def __init__(self, settings: LivePageSettings) -> None:
        self._history = History(settings.audit)
        self._server: _Server | None = None
        if settings.listen:
            self._server = _open(settings.listen)
        self._thread: threading.Thread | None = None
        self._show = paced(self._make_shown, _SHOWN_SECONDS)

    @property
    def address(self) -> str:
        """Where it listens; empty where it does not."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def show(self, state: WatchState) -> None:
        """Makes this state the one that is shown, unless another was a moment ago; a watch calls this at every turn."""
        if self._server is not None:
            self._show(state)

    def _make_shown(self, state: WatchState) -> None:
        if self._server is not None:
            self._server.state = json.dumps(plain(self._history.add(state)), allow_nan=False).encode()

    def __enter__(self) -> Self:
        if self._server is not None:
            self._thread = threading.Thread(target=self._server.serve_forever, name="live-page", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            if self._thread is not None:
                self._server.shutdown()
                self._thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    state = b'{"state": "starting"}'


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "auditor"
    sys_version = ""
    timeout = 10.0

    def do_GET(self) -> None:
        """Answers with a body."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answers without one."""
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Says nothing: the screen is the watch's."""

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if not _is_plain_host(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"use the address, or localhost\n")
        elif path == "/state.json":
            self._send(HTTPStatus.OK, "application/json", self.server.state)
        elif path == "/healthz":
            self._send(HTTPStatus.OK, "text/plain", b"ok\n")
        elif path in ("/", "/page.js"):
            name = "page.js" if path == "/page.js" else "page.html"
            body = resources.files(__package__).joinpath(name).read_bytes()
            self._send(HTTPStatus.OK, _TYPES[name], body)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is /, /state.json and /healthz\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_plain_host(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _open(address: str) -> _Server:
    try:
        return _Server(split_address(address), _Handler)
    except OSError as error:
        raise SettingsError(
            f"page address {address} cannot be used: {error.strerror}", remedy="choose another port with --http"
        ) from None
