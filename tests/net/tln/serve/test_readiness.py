"""/healthz must not call a node well that hears nothing, although the streams of its sessions look whole."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from splitwire.tls import TlsFiles
from tests.net.tln.serve.conftest import wait_until
from tln.connection import ConnectionSettings


def test_a_frozen_node_shows_before_a_text_meets_it(
    start_node: Callable[..., Any], serve: Callable[..., Any], cable: Callable[..., Any], pki: dict[str, TlsFiles]
) -> None:
    """503 with reason and time, and a metric, without an exchange; 200 when it is back, on the same session."""
    node = start_node()
    line, address = cable(node)
    connection = ConnectionSettings(address=address, tls=pki["tln"])
    endpoint = serve(node, {"check_seconds": 0.05, "check_timeout_seconds": 0.5}, connection=connection)
    http = endpoint.http()
    wait_until(lambda: http.get("/healthz").json() == {"status": "ok"})
    assert "tln_serve_ready 1.0" in http.get("/metrics").text
    line.freeze()
    wait_until(lambda: http.get("/healthz").status_code == 503)
    said = http.get("/healthz").json()
    assert said["reason"] == "the untrusted node does not answer"
    assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(said["since"]) < timedelta(minutes=1)
    assert http.get("/healthz").json() == said
    assert "tln_serve_ready 0.0" in http.get("/metrics").text
    line.thaw()
    wait_until(lambda: http.get("/healthz").status_code == 200)
    assert endpoint.client().completions.create(model="tiny", prompt="x", max_tokens=2).usage is not None
    assert line.num_connections == 1
