"""What the page of the watch and the server of the OpenAI API say, on loopback ports of this machine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitwire.backbone import EMBEDDED_MODEL

_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Page:
    """The live page of `auditor watch`."""

    port: int

    def leaks(self) -> list[str]:
        """What it says leaks; empty when it does not answer."""
        return [str(text) for text in self._state().get("leaks", [])]

    def verdict(self) -> str | None:
        """State of the last audit; None without one."""
        found = self._state().get("verdict")
        return str(found["state"]) if found else None

    def _state(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/state.json", timeout=_TIMEOUT_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return {}
        return found


@dataclass(frozen=True)
class Server:
    """`tln serve` as the environment of a compose project publishes it."""

    environment: Mapping[str, str]

    def status(self, *, key: str) -> int:
        """HTTP status of the list of models, asked with this key."""
        try:
            with self._ask("/v1/models", None, key) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code

    def complete(self, prompt: str, *, max_tokens: int) -> str:
        """The greedy continuation of a prompt, asked with the right key."""
        body = {"model": EMBEDDED_MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        key = Path(self.environment["API_KEYS"]).read_text(encoding="ascii").strip()
        with self._ask("/v1/completions", body, key) as answer:
            return str(json.load(answer)["choices"][0]["text"])

    def _ask(self, path: str, body: Mapping[str, Any] | None, key: str) -> Any:
        request = urllib.request.Request(
            f"http://{self.environment['SERVE_LISTEN']}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310 - built above
