"""What a certificate of this project looks like: X.509, P-256, and nothing in it that was not asked for.

A node's certificate is no authority, has critical key usages, and names hosts in its alternative names. It is valid
from an hour ago, since clocks differ.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from splitwire.errors import PkiError

AUTHORITY_DAYS = 3650
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class Authority:
    """The certificate that signs, and its key, which stays on the trusted host."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_authority() -> Authority:
    """An authority of its own name, which lives for AUTHORITY_DAYS and signs nodes alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    # A random part keeps two authorities apart by name, so that a wrong one is told as such by every TLS library.
    name = subject(f"splitwire authority {os.urandom(4).hex()}")
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue(
    authority: Authority,
    public_key: ec.EllipticCurvePublicKey,
    names: Sequence[str],
    usages: list[x509.ObjectIdentifier],
    days: int,
) -> x509.Certificate:
    """A certificate of a node under the first of its names, for these usages and no others."""
    issuer_id = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(subject(names[0]), authority.certificate.subject, public_key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
        .add_extension(alternative_names(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _builder(
    name: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def names_of(extensions: x509.Extensions) -> tuple[str, ...]:
    """Hosts and addresses of a certificate or request; PkiError for a name of another kind."""
    found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if not all(isinstance(name, x509.DNSName | x509.IPAddress) for name in found):
        raise PkiError("a subject alternative name is neither a host nor an address", remedy="ask for hosts only")
    return tuple(str(name.value) for name in found)


def alternative_names(names: Sequence[str]) -> x509.SubjectAlternativeName:
    """The extension for these hosts and addresses."""
    return x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(name)) if is_address(name) else x509.DNSName(name) for name in names]
    )


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def subject(common_name: str) -> x509.Name:
    """A distinguished name of this common name, cut to the 64 characters that X.509 allows."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as PKCS 8 in PEM, not encrypted: the file mode guards it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
