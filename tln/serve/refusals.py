"""What `tln serve` refuses of all settings together.

Refused: an address that is not loopback without a file of API keys; settings that tie the defence to one session, which
a pool of sessions cannot keep.
"""

from __future__ import annotations

import ssl

from splitwire.errors import SettingsError
from splitwire.tls import check_insecure_address, split_address
from tln.settings import TlnSettings


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
