"""Lets only allowed peers call, whatever the method: the certificate's names are checked against the allow-list."""

from __future__ import annotations

from typing import Any

from splitwire.tls import require_peer
from ucn import call as calls
from ucn.interceptors.wrapping import Around, Call

LOOPBACK_PEER = "insecure-loopback"
"""Owner of every session of a plaintext server on loopback."""


def authorise(allowed_names: frozenset[str] | None) -> Around:
    """AuthError for a peer that is not on the list; None stands for a plaintext server, which has one nameless peer."""

    async def around(_method: str, call: Call, context: Any) -> Any:
        peer = LOOPBACK_PEER if allowed_names is None else require_peer(context, allowed_names)
        calls.current().peer = peer
        return await call()

    return around
