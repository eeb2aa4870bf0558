"""What a running Prometheus says, over its HTTP interface."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus on a loopback port."""

    port: int

    def samples(self, query: str) -> list[dict[str, Any]]:
        """Labels and values of an instant query; empty when Prometheus does not answer yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
                return list(json.load(answer)["data"]["result"])
        except OSError:
            return []

    def value(self, query: str) -> float | None:
        """The first sample's value; None without one."""
        found = self.samples(query)
        return float(found[0]["value"][1]) if found else None
