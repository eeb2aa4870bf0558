"""The section [serve] of tln.toml, and what `tln serve` refuses.

Refused: an address that is not loopback without a file of API keys; settings that tie the defence to one session, which
a pool of sessions cannot keep.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from splitwire.errors import SettingsError
from splitwire.tls import check_insecure_address, split_address

if TYPE_CHECKING:
    from tln.settings import TlnSettings

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
    """How long a request may take to arrive: its head, and then its body."""
    retry_after_seconds: _Count = 2
    """What a client that is turned away for now is told to wait."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running requests may go on after SIGTERM."""


def check_serve(settings: TlnSettings) -> None:
    """SettingsError for what `tln serve` refuses beside what cannot generate."""
    serve = settings.serve
    if not is_local(serve.listen) and not serve.api_key_file:
        raise SettingsError(
            f"serve.listen is {serve.listen} and serve.api_key_file is empty: whoever reaches it could use it",
            remedy="set serve.api_key_file, or listen on 127.0.0.1",
        )
    if bool(serve.certificate) != bool(serve.certificate_key):
        raise SettingsError(
            "serve.certificate and serve.certificate_key go together", remedy="set both for HTTPS, or neither"
        )
    if serve.certificate:
        _check_certificate(serve.certificate, serve.certificate_key)
    _refuse_one_session(settings)


def _check_certificate(certificate: str, key: str) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:  # SSLError is one
        raise SettingsError(
            f"serve.certificate {certificate} and serve.certificate_key {key} cannot be used: {error.strerror}",
            remedy="name a PEM file with the certificate chain, and one with its private key",
        ) from None


def is_local(address: str) -> bool:
    """Whether host:port is on the loopback interface. SettingsError when it is no address."""
    split_address(address)
    try:
        check_insecure_address(address)
    except SettingsError:
        return False
    return True


def _refuse_one_session(settings: TlnSettings) -> None:
    if settings.topology.kind != "single":
        raise SettingsError(
            f"topology.kind {settings.topology.kind} is refused by tln serve, whose sessions are one node's each",
            remedy="remove the [topology] section, or use tln generate",
        )
    if settings.keys.ratchet_steps:
        raise SettingsError(
            "keys.ratchet_steps is refused by tln serve: a session that is opened later needs the key that the ratchet "
            "has forgotten",
            remedy="remove it, or use tln generate",
        )
