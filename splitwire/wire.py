"""Names and numbers of the contract that are not in the proto: paths, the protocol version, chunk sizes, digests."""

from __future__ import annotations

import hashlib
import re

PROTOCOL_VERSION = 1
SERVICE = "splitwire.v1.StackService"
OPEN_SESSION = f"/{SERVICE}/OpenSession"
EXCHANGE = f"/{SERVICE}/Exchange"
CLOSE_SESSION = f"/{SERVICE}/CloseSession"

CHUNK_BYTES = 1 << 20
"""Payload bytes of one message."""

MESSAGE_HEADROOM_BYTES = 16 << 10
"""What a message may need beside its payload; the receive limit of both sides is chunk plus headroom."""

MAX_MESSAGE_BYTES = CHUNK_BYTES + MESSAGE_HEADROOM_BYTES

ERROR_KEY = "splitwire-error"
"""Trailing metadata that names the class of the peer's error."""

REMEDY_KEY = "splitwire-remedy"
"""Trailing metadata with the remedy, which also ends the status text."""

LABEL_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What may name a checkpoint."""

KEEPALIVE_TIME_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
KEEPALIVE_MIN_INTERVAL_MS = 20_000


def session_hash(session_id: str) -> str:
    """The only form in which a session id is logged, recorded in truth or reported: 16 hex digits of its SHA-256."""
    return hashlib.sha256(session_id.encode("ascii")).hexdigest()[:16]
