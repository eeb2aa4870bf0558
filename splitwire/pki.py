"""A small certificate authority on the trusted host.

    DIR/ca    ca.pem key.pem            the authority; its key never leaves this folder
    DIR/tln   ca.pem cert.pem key.pem   client only (extended key usage)
    DIR/monitor  the same, client only: pulls metrics, and is on no node's allow-list
    DIR/tap   ca.pem cert.pem key.pem   client and server, short-lived: the tap stands between the two by intent
    DIR/ucn   ca.pem cert.pem key.pem   server only; made here for loopback demos, else on the node from a request

An untrusted node makes its own key and a request (`write_request`); the trusted host signs it (`sign_request`). What is
signed is decided here and not by the request: server usage only, no authority, no reserved name, no wildcard.

Invariants: folders are 0700 and files 0600; nothing is overwritten except by `renew`, which replaces one certificate
atomically and keeps its key and names. Keys are P-256.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from splitwire.certificates import (
    AUTHORITY_DAYS,
    Authority,
    alternative_names,
    certificate_pem,
    is_address,
    issue,
    key_pem,
    names_of,
    new_authority,
    subject,
)
from splitwire.errors import PkiError
from splitwire.private_files import make_private_folder, read_file, replace_private_file, write_private_file
from splitwire.tls import TlsFiles

TLN_NAME = "tln.splitwire"
TAP_NAME = "tap.splitwire"
MONITOR_NAME = "monitor.splitwire"
UCN_NAME = "ucn.splitwire"
ALLOWED_CLIENTS = frozenset({TLN_NAME, TAP_NAME})
"""Who may open sessions on an untrusted node unless its settings say otherwise."""

_RESERVED = ALLOWED_CLIENTS | {MONITOR_NAME}

LOOPBACK_NAMES = ("localhost", "127.0.0.1")
DEFAULT_DAYS = 90
TAP_DAYS = 7

_MAX_NAMES = 16
_MIN_CURVE_BITS = 256
_DNS_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def init_pki(folder: Path, *, loopback: bool = False, days: int = DEFAULT_DAYS) -> dict[str, TlsFiles]:
    """Makes the authority and the certificates of the trusted host; with `loopback` also DIR/ucn, for localhost.

    Returns the files of each node. PkiError when the folder already holds an authority or one of the nodes.
    """
    _check_days(days)
    names = ["tln", "tap", "monitor", *(["ucn"] if loopback else [])]
    for name in ["ca", *names]:
        if (folder / name).exists():
            raise PkiError(f"{folder / name} exists already", remedy="choose a new folder, or use splitwire pki renew")
    make_private_folder(folder)
    authority = new_authority()
    make_private_folder(folder / "ca")
    write_private_file(folder / "ca" / "key.pem", key_pem(authority.key))
    write_private_file(folder / "ca" / "ca.pem", certificate_pem(authority.certificate))
    tap_names = [TAP_NAME, *(LOOPBACK_NAMES if loopback else ())]
    files = {
        "tln": _make_node(folder / "tln", authority, [TLN_NAME], [_CLIENT], days),
        "monitor": _make_node(folder / "monitor", authority, [MONITOR_NAME], [_CLIENT], days),
        "tap": _make_node(folder / "tap", authority, tap_names, [_SERVER, _CLIENT], min(days, TAP_DAYS)),
    }
    if loopback:
        files["ucn"] = _make_node(folder / "ucn", authority, [UCN_NAME, *LOOPBACK_NAMES], [_SERVER], days)
    return files


def write_request(folder: Path, names: Sequence[str] = (UCN_NAME,)) -> Path:
    """Makes a key and a signing request of an untrusted node in a new folder; returns the path of request.pem."""
    _check_names(names)
    make_private_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(names[0]))
        .add_extension(alternative_names(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private_file(folder / "key.pem", key_pem(key))
    write_private_file(folder / "request.pem", request.public_bytes(serialization.Encoding.PEM))
    return folder / "request.pem"


def sign_request(
    pki: Path, request: Path, out: Path, *, expected_names: Sequence[str] = (), days: int = DEFAULT_DAYS
) -> tuple[str, ...]:
    """Signs a request for a server and writes ca.pem and cert.pem into a new folder `out`; returns the names signed.

    With `expected_names` a request that asks for any other set is refused. Sign the same request again to renew.
    """
    _check_days(days)
    authority = _load_authority(pki)
    signing_request = _load_request(request)
    names = _requested_names(signing_request, request)
    if expected_names and set(names) != set(expected_names):
        raise PkiError(
            f"{request} asks for {', '.join(names)}, expected {', '.join(expected_names)}",
            remedy="sign only a request that you asked for",
        )
    public_key = signing_request.public_key()
    if not isinstance(public_key, ec.EllipticCurvePublicKey) or public_key.key_size < _MIN_CURVE_BITS:
        raise PkiError(f"{request} has no P-256 key", remedy="make the request with splitwire pki request")
    certificate = issue(authority, public_key, names, [_SERVER], days)
    make_private_folder(out)
    write_private_file(out / "ca.pem", certificate_pem(authority.certificate))
    write_private_file(out / "cert.pem", certificate_pem(certificate))
    return names


def renew(pki: Path, name: str, *, days: int | None = None) -> datetime:
    """Replaces DIR/<name>/cert.pem by one with a new lifetime, same key, names and usage; returns when it ends."""
    files = TlsFiles.in_folder(pki / name)
    if name == "ca" or not files.certificate.exists():
        raise PkiError(f"{files.certificate} does not exist", remedy="name a node of this folder, such as tln or tap")
    old = _load_certificate(files.certificate)
    days = _default_days(name) if days is None else days
    _check_days(days, longest=_default_days(name) if name == "tap" else AUTHORITY_DAYS)
    public_key = old.public_key()
    if not isinstance(public_key, ec.EllipticCurvePublicKey):
        raise _foreign(files.certificate)
    try:
        names = names_of(old.extensions)
        usages = list(old.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        raise _foreign(files.certificate) from None
    certificate = issue(_load_authority(pki), public_key, names, usages, days)
    replace_private_file(files.certificate, certificate_pem(certificate))
    return certificate.not_valid_after_utc


def _make_node(
    folder: Path, authority: Authority, names: Sequence[str], usages: list[x509.ObjectIdentifier], days: int
) -> TlsFiles:
    files = TlsFiles.in_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    make_private_folder(folder)
    write_private_file(files.key, key_pem(key))
    write_private_file(files.certificate, certificate_pem(issue(authority, key.public_key(), names, usages, days)))
    write_private_file(files.ca, certificate_pem(authority.certificate))
    return files


def _load_authority(pki: Path) -> Authority:
    folder = pki / "ca"
    try:
        certificate = x509.load_pem_x509_certificate(read_file(folder / "ca.pem"))
        key = serialization.load_pem_private_key(read_file(folder / "key.pem"), password=None)
    except (ValueError, TypeError):
        raise PkiError(f"{folder} does not hold an authority", remedy="make one with splitwire pki init") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise PkiError(f"{folder}/key.pem is not the key of {folder}/ca.pem", remedy="restore both from one backup")
    return Authority(certificate, key)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path))
    except ValueError:
        raise _foreign(path) from None


def _foreign(path: Path) -> PkiError:
    return PkiError(f"{path} was not made by splitwire pki", remedy="make a new folder with splitwire pki init")


def _load_request(path: Path) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(read_file(path))
    except ValueError:
        raise PkiError(f"{path} is not a signing request", remedy="make one with splitwire pki request") from None
    if not request.is_signature_valid:
        raise PkiError(f"{path} is not signed by its own key", remedy="make a new one with splitwire pki request")
    return request


def _requested_names(request: x509.CertificateSigningRequest, path: Path) -> tuple[str, ...]:
    try:
        names = names_of(request.extensions)
    except (x509.ExtensionNotFound, x509.UnsupportedGeneralNameType, ValueError):
        raise PkiError(f"{path} names no host", remedy="make it with splitwire pki request --name HOST") from None
    _check_names(names)
    return names


def _check_names(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= _MAX_NAMES:
        raise PkiError(f"{len(names)} names are not acceptable", remedy=f"give 1 to {_MAX_NAMES} names")
    for name in names:
        if name in _RESERVED:
            raise PkiError(f"name {name} is reserved for the trusted host", remedy=f"use a name such as {UCN_NAME}")
        if not is_address(name) and not _DNS_NAME.fullmatch(name):
            raise PkiError(
                f"name {name!r} is not a host name or address",
                remedy="use lower-case letters, digits, '-' and '.', no wildcard",
            )


def _default_days(name: str) -> int:
    return TAP_DAYS if name == "tap" else DEFAULT_DAYS


def _check_days(days: int, longest: int = AUTHORITY_DAYS) -> None:
    if not 1 <= days <= longest:
        raise PkiError(f"a lifetime of {days} days is not acceptable", remedy=f"give 1 to {longest}")
