"""Keys of the audit, and data sealed so that only the auditor can open it.

    audit.key audit.pub                   X25519: truth and run keys are sealed to it (HPKE, RFC 9180)
    tln-recorder.key tln-recorder.pub     Ed25519: signs the manifests of the trusted node's own recorder
    tap-recorder.key tap-recorder.pub     Ed25519: signs the manifests of the tap
    trust.json                            the public keys of the signers that an auditor pins

The suite is DHKEM(X25519), HKDF-SHA256, ChaCha20-Poly1305. Every sealed item names its purpose, which is bound to it:
a run key cannot be passed off as truth. Refused, with SealError: another key, another purpose, changed bytes. Refused,
with PkiError: files that are missing or hold another kind of key.
"""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from splitwire.errors import PkiError, SealError
from splitwire.private_files import make_private_folder, read_file, write_private_file

RECORDERS = ("tln-recorder", "tap-recorder")
TRUST_FILE = "trust.json"
AUDIT_KEY = "audit"

_MAGIC = b"SWSEAL1\n"
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
_PUBLIC_KEY_BYTES = 32


def write_audit_keys(folder: Path) -> Path:
    """Makes all keys of an audit in `folder` and returns the path of trust.json. Nothing is overwritten."""
    if (folder / TRUST_FILE).exists():
        raise PkiError(f"{folder / TRUST_FILE} exists already and is not overwritten", remedy="choose a new folder")
    make_private_folder(folder)
    _write_pair(folder, AUDIT_KEY, X25519PrivateKey.generate())
    signers = []
    for name in RECORDERS:
        key = Ed25519PrivateKey.generate()
        _write_pair(folder, name, key)
        signers.append({"name": name, "public_key": public_key_hex(key.public_key())})
    trust = json.dumps({"version": 1, "signers": signers}, indent=2) + "\n"
    write_private_file(folder / TRUST_FILE, trust.encode("ascii"))
    return folder / TRUST_FILE


def load_sealing_private_key(path: Path) -> X25519PrivateKey:
    """The auditor's private key (audit.key)."""
    key = _private_key(path)
    if not isinstance(key, X25519PrivateKey):
        raise _wrong_key(path, "the audit.key")
    return key


def load_sealing_public_key(path: Path) -> X25519PublicKey:
    """The auditor's public key (audit.pub)."""
    try:
        key = serialization.load_pem_public_key(read_file(path))
    except ValueError:
        raise _wrong_key(path, "the audit.pub") from None
    if not isinstance(key, X25519PublicKey):
        raise _wrong_key(path, "the audit.pub")
    return key


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """A recorder's private key, such as tap-recorder.key."""
    key = _private_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise _wrong_key(path, "a recorder's key, such as tap-recorder.key,")
    return key


def load_trust(path: Path) -> dict[str, Ed25519PublicKey]:
    """The pinned signers of a trust file, by name."""
    try:
        signers = json.loads(read_file(path))["signers"]
        return {str(signer["name"]): public_key_from_hex(signer["public_key"]) for signer in signers}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PkiError(f"{path} is not a trust file", remedy="give the trust.json of auditor keygen") from None


def public_key_hex(key: Ed25519PublicKey) -> str:
    """The raw public key as 64 hex digits."""
    return key.public_bytes_raw().hex()


def public_key_from_hex(text: str) -> Ed25519PublicKey:
    """The reverse of `public_key_hex`; ValueError when it is not 64 hex digits."""
    raw = bytes.fromhex(text)
    if len(raw) != _PUBLIC_KEY_BYTES:
        raise ValueError("not an Ed25519 public key")
    return Ed25519PublicKey.from_public_bytes(raw)


def seal(plaintext: bytes, recipient: X25519PublicKey, purpose: str) -> bytes:
    """Encrypts to the recipient; `purpose` must be given again to open."""
    return _MAGIC + _SUITE.encrypt(plaintext, recipient, info=_info(purpose))


def open_sealed(sealed: bytes, key: X25519PrivateKey, purpose: str) -> bytes:
    """The plaintext. SealError for another key, another purpose or changed bytes (they cannot be told apart)."""
    if not sealed.startswith(_MAGIC):
        raise SealError(f"this is not sealed data ({purpose})", remedy="give the file that the trusted node wrote")
    try:
        return _SUITE.decrypt(sealed[len(_MAGIC) :], key, info=_info(purpose))
    except (InvalidTag, ValueError):
        raise SealError(
            f"sealed data ({purpose}) does not open with this key", remedy="give the audit.key it was sealed to"
        ) from None


def _info(purpose: str) -> bytes:
    return b"splitwire/v1/" + purpose.encode("ascii")


def _write_pair(folder: Path, name: str, key: X25519PrivateKey | Ed25519PrivateKey) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_private_file(folder / f"{name}.key", private)
    write_private_file(folder / f"{name}.pub", public)


def _private_key(path: Path) -> object:
    try:
        return serialization.load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError):
        return None


def _wrong_key(path: Path, wanted: str) -> PkiError:
    return PkiError(f"{path} is not the key that is needed here", remedy=f"give {wanted} of auditor keygen")
