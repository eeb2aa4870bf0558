"""The section [serve] of tln.toml: where `tln serve` listens, who may call, and how much it takes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class ServeSettings:
    """`tln serve`: where it listens, who may call, and how much it takes on at once."""

    listen: str = "127.0.0.1:8080"
    """host:port of the HTTP endpoint. Any address that is not loopback needs api_key_file."""
    api_key_file: str = ""
    """File with the API keys, one a line, readable by its owner alone; empty for none, on loopback."""
    certificate: str = ""
    """Certificate chain (PEM) for HTTPS; empty for HTTP."""
    certificate_key: str = ""
    """Its private key."""
    model_name: str = ""
    """Name that clients ask for; empty for the last part of model.source."""
    max_running: _Count = 8
    """Texts that are generated at once. Each has a session of its own on the untrusted node."""
    max_waiting: Annotated[int, Field(ge=0)] = 64
    """Texts that may wait for a place; beyond it a request is answered 429."""
    prefill_positions: _Count = 128
    """Most positions of prompts that go through in one step, so that long prompts hold up nobody."""
    max_choices: _Count = 8
    """Texts of one request: its prompts times its n."""
    default_max_tokens: _Count = 512
    """Most new tokens of a request that does not say."""
    max_body_bytes: _Count = 1 << 20
    """Largest body of a request."""
    body_seconds: _Seconds = 30.0
    """How long a request may take to arrive: its head, and then its body; and how long an answer may lie unread."""
    max_connections: _Count = 256
    """Connections that are served at once; more are answered 503, and closed where they are twice as many."""
    check_seconds: _Seconds = 5.0
    """How often the untrusted node is asked whether it serves, beside all that crosses."""
    check_timeout_seconds: _Seconds = 5.0
    """How long its answer may take; then /healthz is 503, until it answers again."""
    retry_after_seconds: _Count = 2
    """What a client that is turned away for now is told to wait."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running requests may go on after SIGTERM."""
