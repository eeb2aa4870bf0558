"""Mutual TLS for gRPC: credentials from files, who the peer is, and whether it may be here.

Both sides always authenticate. Being signed by the same authority is not enough: `require_peer` checks the subject
alternative names of the peer against an allow-list, and the extended key usage of a certificate keeps an untrusted
node's certificate from acting as a client. Plaintext exists for loopback only (`check_insecure_address`).

Refused, with PkiError: files that are missing, unreadable, expired, not signed by the authority, or a key that is not
the certificate's. Servers read renewed files in place, and keep what they have while a renewal is half written.
Channels cannot (gRPC issue 41779): build a new channel.

gRPC negotiates TLS 1.3 between two peers of this project, but offers no setting that refuses TLS 1.2;
`negotiated_version` shows what a running server does.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from splitwire.errors import AuthError, PkiError, SettingsError

_PROBE_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of one node: the authority's certificate, its own certificate (chain) and its private key."""

    ca: Path
    """Certificate of the authority that signed both sides."""
    certificate: Path
    """This node's certificate."""
    key: Path
    """This node's private key."""

    @classmethod
    def in_folder(cls, folder: Path) -> TlsFiles:
        """The files of a folder that `splitwire pki` wrote."""
        return cls(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")


@dataclass(frozen=True)
class _Material:
    ca: bytes
    certificate: bytes
    key: bytes

    def pairs(self) -> list[tuple[bytes, bytes]]:
        return [(self.key, self.certificate)]


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that require a client certificate and follow renewals of the files without a restart."""
    reloader = _Reloader(files)
    return grpc.dynamic_ssl_server_credentials(reloader.initial(), reloader.fetch, require_client_authentication=True)


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials of a client that shows its certificate and trusts only this authority."""
    material = read_files(files)
    return grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)


def read_files(files: TlsFiles) -> _Material:
    """The three files, checked against one another and the clock."""
    material = _Material(
        _read(files.ca, "authority certificate"),
        _read(files.certificate, "certificate"),
        _read(files.key, "private key"),
    )
    authority = _certificate(material.ca, files.ca)
    certificate = _certificate(material.certificate, files.certificate)
    _check_key(certificate, material.key, files)
    _check_issuer(certificate, authority, files)
    for found, path in ((authority, files.ca), (certificate, files.certificate)):
        _check_dates(found, path)
    return material


class _Reloader:
    """Gives gRPC the new material once the files have changed and fit together; asked at every handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = self._current_stamp()
        self._material = read_files(files)

    def initial(self) -> Any:
        return self._configuration(self._material)

    def fetch(self) -> Any:
        stamp = self._current_stamp()
        if stamp == self._stamp:
            return None
        try:
            material = read_files(self._files)
        except PkiError:
            return None  # half written or wrong: what is loaded stays in use, and the next handshake looks again
        self._stamp, self._material = stamp, material
        return self._configuration(material)

    def _current_stamp(self) -> tuple[int, ...]:
        return tuple(_modified_ns(path) for path in (self._files.ca, self._files.certificate, self._files.key))

    @staticmethod
    def _configuration(material: _Material) -> Any:
        return grpc.ssl_server_certificate_configuration(material.pairs(), root_certificates=material.ca)


def peer_names(context: Any) -> tuple[str, ...]:
    """Subject alternative names of an authenticated peer, empty when there is none; for sync and aio contexts."""
    found = context.auth_context()
    if b"ssl" not in found.get("transport_security_type", ()):
        return ()
    names = found.get("x509_subject_alternative_name", ())
    return tuple(name.decode("utf-8", errors="replace") for name in names)


def require_peer(context: Any, allowed: frozenset[str]) -> str:
    """The allowed name under which the peer is here. AuthError when it is not authenticated or not on the list."""
    names = peer_names(context)
    if not names:
        raise AuthError("the peer shows no certificate", remedy="connect with mutual TLS (see splitwire pki init)")
    for name in names:
        if name in allowed:
            return name
    raise AuthError(
        "the peer's certificate names nobody on the allow-list",
        remedy="use the certificate of an allowed node, or add its name to allowed_names on this side",
        authenticated=True,
    )


def check_insecure_address(address: str) -> None:
    """SettingsError unless host:port is on the loopback interface, the only place where plaintext is allowed."""
    host = split_address(address)[0]
    if host != "localhost" and not _is_loopback(host):
        raise SettingsError(
            f"plaintext on {address} is refused: it is not a loopback address",
            remedy="use 127.0.0.1 or [::1], or give TLS files",
        )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of 'host:port' or '[v6]:port'; SettingsError when it is neither."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise SettingsError(f"address {address!r} is not host:port", remedy="write for instance 127.0.0.1:7700")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return host, int(port)


def certificate_end(path: Path) -> float:
    """When the first certificate of a PEM file expires, in seconds of the epoch; 0 when it cannot be read."""
    try:
        return _certificate(_read(path, "certificate"), path).not_valid_after_utc.timestamp()
    except PkiError:
        return 0.0


def negotiated_version(address: str, files: TlsFiles, server_name: str) -> str:
    """The TLS version that a running server at host:port agrees with this client on, such as 'TLSv1.3'."""
    read_files(files)
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(split_address(address), timeout=_PROBE_TIMEOUT_SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=server_name) as secure,
    ):
        return secure.version() or "none"


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PkiError(
            f"{what} {path} cannot be read: {error.strerror}", remedy="check the path, or run splitwire pki init"
        ) from None


def _certificate(pem: bytes, path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError:
        raise PkiError(
            f"{path} is not a PEM certificate", remedy="give the cert.pem or ca.pem of splitwire pki"
        ) from None


def _check_key(certificate: x509.Certificate, key_pem: bytes, files: TlsFiles) -> None:
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError):
        raise PkiError(
            f"{files.key} is not an unencrypted PEM private key", remedy="give the key.pem beside it"
        ) from None
    if key.public_key() != certificate.public_key():
        raise PkiError(f"key {files.key} does not belong to {files.certificate}", remedy="give both of one folder")


def _check_issuer(certificate: x509.Certificate, authority: x509.Certificate, files: TlsFiles) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise PkiError(
            f"{files.certificate} is not signed by {files.ca}",
            remedy="take both from the same splitwire pki init, or have the request signed there",
        ) from None


def _check_dates(certificate: x509.Certificate, path: Path) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise PkiError(
            f"{path} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", remedy="run splitwire pki renew"
        )
    if now < certificate.not_valid_before_utc:
        raise PkiError(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only",
            remedy="check this machine's clock",
        )
