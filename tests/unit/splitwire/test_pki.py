"""What the small certificate authority must make, and what it must refuse to sign."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from splitwire.errors import PkiError
from splitwire.pki import init_pki, renew, sign_request, write_request
from splitwire.tls import TlsFiles, read_files


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


def usages(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def write_csr(
    path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, general_names: list[x509.GeneralName]
) -> Path:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    )
    if general_names:
        builder = builder.add_extension(x509.SubjectAlternativeName(general_names), critical=False)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


def test_each_node_gets_the_usage_of_its_role_and_no_more(tmp_path: Path) -> None:
    files = init_pki(tmp_path / "pki", loopback=True)
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    assert usages(load(files["tln"].certificate)) == {client}
    assert usages(load(files["ucn"].certificate)) == {server}
    assert usages(load(files["tap"].certificate)) == {client, server}
    assert names(load(files["tln"].certificate)) == ["tln.splitwire"]
    assert names(load(files["ucn"].certificate)) == ["ucn.splitwire", "localhost", "127.0.0.1"]


def test_without_loopback_no_untrusted_node_is_made(tmp_path: Path) -> None:
    assert set(init_pki(tmp_path / "pki")) == {"tln", "tap", "monitor"}
    assert not (tmp_path / "pki" / "ucn").exists()


def test_the_taps_certificate_is_short_lived_whatever_was_asked(tmp_path: Path) -> None:
    files = init_pki(tmp_path / "pki", days=365)
    assert load(files["tap"].certificate).not_valid_after_utc < datetime.now(UTC) + timedelta(days=8)
    with pytest.raises(PkiError, match="give 1 to 7"):
        renew(tmp_path / "pki", "tap", days=30)


def test_only_the_owner_may_read_what_is_written(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki", loopback=True)
    paths = [tmp_path / "pki", *(tmp_path / "pki").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki")
    before = {path: path.read_bytes() for path in (tmp_path / "pki").rglob("*.pem")}
    with pytest.raises(PkiError, match="exists already"):
        init_pki(tmp_path / "pki", loopback=True)
    assert {path: path.read_bytes() for path in (tmp_path / "pki").rglob("*.pem")} == before


def test_a_request_is_signed_for_a_server_and_fits_its_key(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki")
    request = write_request(tmp_path / "node", ["gpu-1.example.org", "10.0.0.7"])
    signed = sign_request(tmp_path / "pki", request, tmp_path / "signed")
    assert signed == ("gpu-1.example.org", "10.0.0.7")
    certificate = load(tmp_path / "signed" / "cert.pem")
    assert usages(certificate) == {ExtendedKeyUsageOID.SERVER_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not (tmp_path / "signed" / "key.pem").exists()
    read_files(
        TlsFiles(tmp_path / "signed" / "ca.pem", tmp_path / "signed" / "cert.pem", tmp_path / "node" / "key.pem")
    )


def test_signing_the_same_request_again_renews_and_never_overwrites(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki")
    request = write_request(tmp_path / "node")
    sign_request(tmp_path / "pki", request, tmp_path / "first")
    with pytest.raises(PkiError, match="exists already"):
        sign_request(tmp_path / "pki", request, tmp_path / "first")
    sign_request(tmp_path / "pki", request, tmp_path / "second")
    first, second = load(tmp_path / "first" / "cert.pem"), load(tmp_path / "second" / "cert.pem")
    assert first.public_key() == second.public_key()
    assert first.serial_number != second.serial_number


@pytest.mark.parametrize("name", ["tln.splitwire", "tap.splitwire"])
def test_a_reserved_name_is_not_signed(tmp_path: Path, name: str) -> None:
    init_pki(tmp_path / "pki")
    request = write_csr(
        tmp_path / "r.pem", ec.generate_private_key(ec.SECP256R1()), [x509.DNSName("a.org"), x509.DNSName(name)]
    )
    with pytest.raises(PkiError, match="reserved"):
        sign_request(tmp_path / "pki", request, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("general_names", "message"),
    [
        ([x509.DNSName("*.example.org")], "not a host name"),
        ([x509.DNSName("UPPER.org")], "not a host name"),
        ([x509.UniformResourceIdentifier("spiffe://x/tln.splitwire")], "neither a host nor an address"),
        ([], "names no host"),
        ([x509.DNSName(f"h{index}.org") for index in range(17)], "17 names"),
    ],
)
def test_a_request_for_unacceptable_names_is_not_signed(
    tmp_path: Path, general_names: list[x509.GeneralName], message: str
) -> None:
    init_pki(tmp_path / "pki")
    request = write_csr(tmp_path / "r.pem", ec.generate_private_key(ec.SECP256R1()), general_names)
    with pytest.raises(PkiError, match=message):
        sign_request(tmp_path / "pki", request, tmp_path / "out")


def test_a_request_with_another_kind_of_key_is_not_signed(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    request = write_csr(tmp_path / "r.pem", key, [x509.DNSName("a.org")])
    with pytest.raises(PkiError, match="no P-256 key"):
        sign_request(tmp_path / "pki", request, tmp_path / "out")


def test_a_request_for_other_names_than_expected_is_not_signed(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki")
    request = write_request(tmp_path / "node", ["evil.org"])
    with pytest.raises(PkiError, match=r"asks for evil\.org, expected good\.org"):
        sign_request(tmp_path / "pki", request, tmp_path / "out", expected_names=["good.org"])


def test_a_file_that_is_no_request_is_told_as_such(tmp_path: Path) -> None:
    init_pki(tmp_path / "pki")
    (tmp_path / "r.pem").write_text("nothing")
    with pytest.raises(PkiError, match="not a signing request"):
        sign_request(tmp_path / "pki", tmp_path / "r.pem", tmp_path / "out")


def test_renew_keeps_key_names_and_usage(tmp_path: Path) -> None:
    files = init_pki(tmp_path / "pki", loopback=True)["ucn"]
    old = load(files.certificate)
    renew(tmp_path / "pki", "ucn", days=30)
    new = load(files.certificate)
    assert (new.public_key(), names(new), usages(new)) == (old.public_key(), names(old), usages(old))
    assert new.serial_number != old.serial_number
    assert stat.S_IMODE(files.certificate.stat().st_mode) == 0o600
    read_files(files)


@pytest.mark.parametrize("name", ["ca", "nobody"])
def test_renew_refuses_what_is_not_a_node(tmp_path: Path, name: str) -> None:
    init_pki(tmp_path / "pki")
    with pytest.raises(PkiError, match="does not exist"):
        renew(tmp_path / "pki", name)


def test_renew_refuses_a_certificate_that_it_cannot_read(tmp_path: Path) -> None:
    files = init_pki(tmp_path / "pki")["tln"]
    files.certificate.write_text("nothing")
    with pytest.raises(PkiError, match="was not made by splitwire pki"):
        renew(tmp_path / "pki", "tln")


def test_the_authority_cannot_be_used_with_another_key(tmp_path: Path) -> None:
    init_pki(tmp_path / "a")
    init_pki(tmp_path / "b")
    (tmp_path / "a" / "ca" / "key.pem").write_bytes((tmp_path / "b" / "ca" / "key.pem").read_bytes())
    with pytest.raises(PkiError, match="is not the key of"):
        renew(tmp_path / "a", "tln")


@pytest.mark.parametrize("days", [0, -1, 4000])
def test_an_unusable_lifetime_is_refused_before_anything_is_made(tmp_path: Path, days: int) -> None:
    with pytest.raises(PkiError, match="lifetime"):
        init_pki(tmp_path / "pki", days=days)
    assert not (tmp_path / "pki").exists()
