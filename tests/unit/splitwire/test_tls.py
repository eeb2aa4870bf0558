"""What TLS files are refused, who a peer is, and where plaintext may be."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from splitwire import pki, tls
from splitwire.errors import AuthError, PkiError, SettingsError
from splitwire.tls import TlsFiles, check_insecure_address, peer_names, require_peer, split_address

ALLOWED = frozenset({"tln.splitwire"})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, TlsFiles]:
    return pki.init_pki(tmp_path / "pki", loopback=True)


def context(kind: bytes = b"ssl", *sans: bytes) -> SimpleNamespace:
    found = {"transport_security_type": [kind], "x509_subject_alternative_name": list(sans)}
    return SimpleNamespace(auth_context=lambda: found)


def test_files_of_one_folder_are_accepted(files: dict[str, TlsFiles]) -> None:
    for node in files.values():
        tls.read_files(node)
        assert tls.channel_credentials(node) is not None


def test_a_missing_file_is_named(files: dict[str, TlsFiles], tmp_path: Path) -> None:
    with pytest.raises(PkiError, match=r"private key .*none\.pem cannot be read: No such file"):
        tls.read_files(replace(files["tln"], key=tmp_path / "none.pem"))


def test_a_key_of_another_certificate_is_refused(files: dict[str, TlsFiles]) -> None:
    with pytest.raises(PkiError, match="does not belong to"):
        tls.read_files(replace(files["tln"], key=files["ucn"].key))


def test_a_certificate_of_another_authority_is_refused(files: dict[str, TlsFiles], tmp_path: Path) -> None:
    other = pki.init_pki(tmp_path / "other")["tln"]
    with pytest.raises(PkiError, match="is not signed by"):
        tls.read_files(replace(files["tln"], ca=other.ca))


@pytest.mark.parametrize("field", ["ca", "certificate", "key"])
def test_what_is_no_pem_is_refused(files: dict[str, TlsFiles], tmp_path: Path, field: str) -> None:
    (tmp_path / "x.pem").write_text("not pem")
    with pytest.raises(PkiError, match=r"x\.pem is not"):
        tls.read_files(replace(files["tln"], **{field: tmp_path / "x.pem"}))


@pytest.mark.parametrize(("shift_days", "message"), [(8, "expired"), (-8, "clock")])
def test_a_certificate_out_of_its_time_is_refused(
    files: dict[str, TlsFiles], monkeypatch: pytest.MonkeyPatch, shift_days: int, message: str
) -> None:
    class Shifted(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # noqa: ARG003 - the signature it stands for
            return datetime.now(UTC) + timedelta(days=shift_days)

    monkeypatch.setattr(tls, "datetime", Shifted)
    with pytest.raises(PkiError, match=message):
        tls.read_files(files["tap"])


def test_peer_names_are_those_of_an_authenticated_peer_only() -> None:
    assert peer_names(context(b"ssl", b"tln.splitwire", b"localhost")) == ("tln.splitwire", "localhost")
    assert peer_names(context(b"insecure", b"tln.splitwire")) == ()
    assert peer_names(SimpleNamespace(auth_context=dict)) == ()


def test_an_allowed_peer_is_told_by_its_name() -> None:
    assert require_peer(context(b"ssl", b"localhost", b"tln.splitwire"), ALLOWED) == "tln.splitwire"


def test_an_unlisted_peer_is_authenticated_but_refused() -> None:
    with pytest.raises(AuthError, match="allow-list") as caught:
        require_peer(context(b"ssl", b"ucn.splitwire"), ALLOWED)
    assert caught.value.authenticated


def test_a_name_must_match_whole() -> None:
    for near in (b"tln.splitwire.evil.org", b"xtln.splitwire", b"TLN.splitwire", b"tln.splitwire\x00"):
        with pytest.raises(AuthError):
            require_peer(context(b"ssl", near), ALLOWED)


def test_a_peer_without_certificate_is_not_authenticated() -> None:
    with pytest.raises(AuthError, match="no certificate") as caught:
        require_peer(context(b"insecure"), ALLOWED)
    assert not caught.value.authenticated


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.1:7700", "[::1]:7700", "localhost:0"])
def test_plaintext_is_allowed_on_loopback(address: str) -> None:
    check_insecure_address(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7700", "10.0.0.1:1", "[::]:1", "localhost.evil.org:1", "127.0.0.1.nip.io:1"]
)
def test_plaintext_is_refused_elsewhere(address: str) -> None:
    with pytest.raises(SettingsError, match="not a loopback address"):
        check_insecure_address(address)


@pytest.mark.parametrize("address", ["", "localhost", ":7", "host:x", "host:70000", "host:-1"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="not host:port"):
        split_address(address)
