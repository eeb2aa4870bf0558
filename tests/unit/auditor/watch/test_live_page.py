"""The page of a watch: what it serves, what it refuses, and what a real browser makes of it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from auditor.watch import Watcher, WatchSettings
from auditor.watch.live import LivePage
from auditor.watch.live.history import History, last_verdict
from auditor.watch.settings import LivePageSettings
from splitwire.errors import SettingsError
from tests.unit.auditor.browser import needs_browser, seen_by_a_browser

Record = Callable[..., Any]


def _get(address: str, path: str, method: str = "GET", host: str = "") -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture
def watched(record: Record) -> Iterator[Watcher]:
    """A watch with the truth, 60 steps into a recording with raw gradients that goes on."""
    recording = record(gradient="open", leak=2.0)
    recording.steps(60)
    key = recording.keys / "audit.key"
    watcher = Watcher(WatchSettings(bundle=recording.folder, truth=recording.truth_file, key=key))
    while watcher.turn():
        pass
    yield watcher
    watcher.close()
    recording.close()


@pytest.fixture
def page(watched: Watcher, tmp_path: Path) -> Iterator[LivePage]:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.json").write_text('{"verdict": {"state": "fail"}}')
    with LivePage(LivePageSettings(listen="127.0.0.1:0", audit=tmp_path / "audit")) as shown:
        shown.show(watched.state())
        yield shown


def test_the_state_tells_traffic_support_gate_and_verdict(page: LivePage) -> None:
    status, headers, body = _get(page.address, "/state.json")
    state = json.loads(body)
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert state["schema"] == "splitwire.watch/1"
    assert state["bytes"]["FORWARD"] > 60 * 24 * 12 * 4
    assert state["bytes"]["BACKWARD"] > 60 * 24 * 12 * 4
    assert len(state["support"]) == 16
    assert all(line["nonzero"] == line["real"] and sum(line["real"]) == 10 for line in state["support"])
    assert any(leak.startswith("support: 60 frames") for leak in state["leaks"])
    assert state["gate_pp"] is not None
    assert state["floor_pp"] is not None
    assert state["verdict"]["state"] == "fail"
    assert state["samples"]


def test_samples_are_bounded_and_a_second_apart(watched: Watcher) -> None:
    history, state = History(None), watched.state()
    for number in range(2000):
        shown = history.add(_at(state, number / 2))
    seconds = [sample["seconds"] for sample in shown["samples"]]
    assert len(seconds) == 900
    assert min(b - a for a, b in pairwise(seconds)) >= 1.0
    assert shown["verdict"] is None


def _at(state: Any, seconds: float) -> Any:
    return replace(state, seconds=seconds)


@pytest.mark.parametrize("content", ["", "{", '{"verdict": 3}', "[]"])
def test_a_half_written_verdict_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "audit.json").write_text(content)
    assert last_verdict(tmp_path) is None
    assert last_verdict(tmp_path / "missing") is None


def test_it_only_reads(page: LivePage) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert _get(page.address, "/state.json", method)[0] == 501
    status, headers, body = _get(page.address, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert _get(page.address, "/../etc/passwd")[0] == 404
    assert _get(page.address, "/healthz")[2] == b"ok\n"


def test_another_sites_name_is_refused(page: LivePage) -> None:
    """A name that was made to point here (DNS rebinding) gets nothing."""
    port = page.address.rpartition(":")[2]
    assert _get(page.address, "/state.json", host=f"evil.example:{port}")[0] == 403
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "[::1]"):
        assert _get(page.address, "/state.json", host=host)[0] == 200


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match=f"page address {address}"):
            LivePage(LivePageSettings(listen=address))


@needs_browser
def test_a_browser_draws_it(page: LivePage, tmp_path: Path) -> None:
    seen = seen_by_a_browser(f"http://{page.address}/", tmp_path)
    assert '<b id="headline">LEAK</b>' in seen
    assert "support: 60 frames whose zero gradients are exactly the decoys" in seen
    assert "last audit: fail" in seen
    assert seen.count('class="real"') == 16 * 10
    assert seen.count('class="empty"') == 16 * 14
    assert 'data-name="gate"' in seen
