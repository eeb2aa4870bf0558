"""The manifest of a bundle: what was recorded, with which settings, and the hash of every file, signed.

Canonical JSON (RFC 8785) in manifest.json, the Ed25519 signature over those bytes in manifest.sig. The manifest is
written last and atomically: a bundle without one is incomplete. The key inside manifest.sig proves nothing by itself;
a verifier pins signers (`splitwire.sealing.load_trust`).
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pydantic
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import splitwire
from splitwire.errors import BundleError
from splitwire.private_files import replace_file
from splitwire.sealing import public_key_from_hex, public_key_hex
from splitwire.settings import canonical_json, to_tree

FORMAT = "splitwire-bundle"
FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig"
WIRE_FILE = "wire.mcap"

_SIGNED_PREFIX = b"splitwire bundle manifest v1\n"
_LIBRARIES = ("cryptography", "grpcio", "mcap", "numpy", "protobuf", "safetensors", "torch", "transformers")


@dataclass(frozen=True)
class FileEntry:
    """Content of one file of the bundle."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class HopCount:
    """What one hop carried: whole serialized messages, framing included."""

    messages: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a recorder says of a bundle that it closed."""

    recorder: str
    created: str
    closed: str
    settings: dict[str, Any]
    settings_hash: str
    versions: dict[str, str]
    counts: dict[str, HopCount]
    num_messages: int
    num_bytes: int
    num_sessions: int
    num_dropped: int
    files: dict[str, FileEntry]
    format: str = FORMAT
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Signature:
    """Content of manifest.sig, hex."""

    algorithm: str
    public_key: str
    signature: str


def software_versions() -> dict[str, str]:
    """Versions of splitwire, Python and the libraries that shape what is recorded; imports none of them."""
    versions = {"splitwire": splitwire.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def utc_now() -> str:
    """This moment, ISO 8601 in UTC to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def settings_digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 hex over the canonical form of plain settings."""
    return hashlib.sha256(canonical_json(settings)).hexdigest()


def list_files(folder: Path) -> list[str]:
    """Relative paths of every file that a manifest must name: all but the manifest, its signature and hidden files."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    names = (path.as_posix() for path in paths if not path.name.startswith("."))
    return [name for name in names if name not in (MANIFEST_FILE, SIGNATURE_FILE)]


def hash_files(folder: Path, skip: frozenset[str] = frozenset()) -> dict[str, FileEntry]:
    """Hash and size of the files of a bundle, by relative path."""
    return {name: hash_file(folder / name) for name in list_files(folder) if name not in skip}


def hash_file(path: Path) -> FileEntry:
    """Hash and size of one file, streamed."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(digest.hexdigest(), file.tell())


def write_manifest(folder: Path, manifest: Any, signing_key: Ed25519PrivateKey | None) -> None:
    """Writes signature and manifest (a dataclass), the manifest last. OSError passes through."""
    content = canonical_json(to_tree(manifest))
    if signing_key is not None:
        signature = Signature(
            "ed25519", public_key_hex(signing_key.public_key()), signing_key.sign(_SIGNED_PREFIX + content).hex()
        )
        replace_file(folder / SIGNATURE_FILE, canonical_json(to_tree(signature)), mode=0o600)
    replace_file(folder / MANIFEST_FILE, content, mode=0o600)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest; None when there is none. BundleError when it is not one of this version."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        tree = json.loads(path.read_bytes())
        if tree["format"] != FORMAT or tree["format_version"] != FORMAT_VERSION:
            raise BundleError(
                f"{path} is version {tree['format_version']!r} of {tree['format']!r}",
                remedy=f"use the splitwire that wrote it; this one reads version {FORMAT_VERSION}",
            )
        return pydantic.TypeAdapter(Manifest).validate_python(tree, extra="forbid")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BundleError(f"{path} is not a bundle's manifest", remedy="restore it, or record again") from None


def read_signature(folder: Path) -> Signature | None:
    """The signature; None when there is none. BundleError when it cannot be read."""
    path = folder / SIGNATURE_FILE
    if not path.exists():
        return None
    try:
        return pydantic.TypeAdapter(Signature).validate_json(path.read_bytes())
    except (OSError, ValueError):
        raise BundleError(f"{path} is not a signature", remedy="restore it, or record again") from None


def check_signature(folder: Path, signature: Signature) -> Ed25519PublicKey | None:
    """The key that signed manifest.json as it lies there; None when the signature does not hold."""
    try:
        key = public_key_from_hex(signature.public_key)
        key.verify(bytes.fromhex(signature.signature), _SIGNED_PREFIX + (folder / MANIFEST_FILE).read_bytes())
    except (InvalidSignature, ValueError):
        return None
    return key if signature.algorithm == "ed25519" else None
