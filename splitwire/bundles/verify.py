"""Says whether a bundle is whole, untouched, without drops, and signed by a recorder that the verifier pins.

Every finding is a line in `problems` that ends in a remedy; a bundle without problems is fit for an audit. Without a
trust file the signature shows only that nothing changed since somebody signed: that is a note, not a proof of who
signed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from splitwire.bundles.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    WIRE_FILE,
    HopCount,
    Manifest,
    check_signature,
    hash_file,
    list_files,
    read_manifest,
    read_signature,
    settings_digest,
)
from splitwire.bundles.reader import Bundle
from splitwire.bundles.records import hop_name
from splitwire.bundles.snapshots import SnapshotManifest, is_snapshot_bundle, open_snapshots
from splitwire.errors import BundleError
from splitwire.sealing import load_trust, public_key_hex


@dataclass
class VerifyReport:
    """What was found. `signer` is the pinned name of who signed, empty when not known; `counts` is what can be read."""

    is_complete: bool = False
    is_signed: bool = False
    signer: str = ""
    num_dropped: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, HopCount] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify_bundle(folder: Path, trust: Path | None = None) -> VerifyReport:
    """Checks manifest, signature, every file, checksums, counts and drops. PkiError when the trust file is not one."""
    signers = None if trust is None else {public_key_hex(key): name for name, key in load_trust(trust).items()}
    report = VerifyReport()
    if not folder.is_dir():
        report.problems.append(f"{folder} is no folder. Give the folder of a bundle")
        return report
    if is_snapshot_bundle(folder):
        return _verify_snapshots(folder, signers, report)
    manifest = _read_manifest(folder, report)
    named: set[str] = set()
    if manifest is not None:
        report.is_complete = True
        report.num_dropped = manifest.num_dropped
        _check_signature(folder, signers, report)
        named = _check_files(folder, manifest, report)
        _check_drops(manifest, report)
    contradictions = _check_content(folder, manifest, report)
    if WIRE_FILE not in named:  # else they follow from what was told of the file, which is told once
        report.problems += contradictions
    return report


def _verify_snapshots(folder: Path, signers: dict[str, str] | None, report: VerifyReport) -> VerifyReport:
    """A snapshot bundle: manifest, signature, every file, its session and its count."""
    try:
        bundle = open_snapshots(folder)
    except BundleError as error:
        report.problems.append(str(error))
        return report
    manifest = bundle.head
    if manifest is None:
        report.problems.append(
            f"{MANIFEST_FILE} is missing: the session still runs, or its node was killed. End it to complete them"
        )
        return report
    report.is_complete = True
    report.num_dropped = manifest.num_dropped
    report.notes.append(f"{manifest.num_snapshots} snapshots of session {manifest.session_hash}")
    _check_signature(folder, signers, report)
    _check_files(folder, manifest, report)
    if manifest.num_dropped:
        report.problems.append(
            f"the node dropped {manifest.num_dropped} snapshots. Snapshot again with a faster disk, or less often"
        )
    return report


def _read_manifest(folder: Path, report: VerifyReport) -> Manifest | None:
    try:
        manifest = read_manifest(folder)
    except BundleError as error:
        report.problems.append(str(error))
        return None
    if manifest is None:
        report.problems.append(
            f"{MANIFEST_FILE} is missing: the recorder still runs, was killed or could not write. Stop a running one "
            "(SIGTERM or Ctrl-C completes its bundle), else record again; what is there can be inspected but cannot "
            "pass an audit"
        )
    return manifest


def _check_signature(folder: Path, signers: dict[str, str] | None, report: VerifyReport) -> None:
    try:
        signature = read_signature(folder)
    except BundleError as error:
        report.problems.append(str(error))
        return
    if signature is None:
        _tell_unsigned(folder, signers, report)
        return
    key = check_signature(folder, signature)
    if key is None:
        report.problems.append(
            f"{SIGNATURE_FILE} does not fit {MANIFEST_FILE}: one of them was changed. Restore both from the recorder"
        )
        return
    report.is_signed = True
    if signers is None:
        report.notes.append("the signer is not checked: give the trust.json of auditor keygen with --trust")
        return
    report.signer = signers.get(public_key_hex(key), "")
    if not report.signer:
        report.problems.append(
            "the manifest is signed by a key that the trust file does not list. "
            "Take the bundle from a recorder you trust, or add its public key to the trust file"
        )


def _tell_unsigned(folder: Path, signers: dict[str, str] | None, report: VerifyReport) -> None:
    whose = "the untrusted node a snapshots.signing_key" if is_snapshot_bundle(folder) else "the recorder a signing key"
    text = f"the manifest is not signed. Give {whose} of auditor keygen"
    (report.notes if signers is None else report.problems).append(text)


def _check_files(folder: Path, manifest: Manifest | SnapshotManifest, report: VerifyReport) -> set[str]:
    """The names of the files of the manifest with which something is wrong."""
    present, named = set(list_files(folder)), set()
    for name, entry in manifest.files.items():
        if name not in present:
            report.problems.append(f"{name} is missing. Restore it from the recorder")
        elif hash_file(folder / name) != entry:
            report.problems.append(f"{name} was changed since the recorder closed the bundle. Restore it")
        else:
            continue
        named.add(name)
    for name in sorted(present - manifest.files.keys()):
        report.problems.append(f"{name} is not in the manifest. Move it out of the bundle")
    if manifest.settings_hash != settings_digest(manifest.settings):
        report.problems.append("settings_hash does not fit the settings of the manifest. Restore the manifest")
    return named


def _check_drops(manifest: Manifest, report: VerifyReport) -> None:
    if manifest.num_dropped:
        report.problems.append(
            f"the recorder dropped {manifest.num_dropped} messages. "
            "Record again with a faster disk, a larger queue, or when_full = wait"
        )


def _check_content(folder: Path, manifest: Manifest | None, report: VerifyReport) -> list[str]:
    """Reads every message, so that each chunk's checksum is checked, and compares settings and counts.

    Fills the counts and returns the problems.
    """
    try:
        bundle = Bundle(folder, manifest)
        messages: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for record in bundle.messages():
            messages[hop_name(record.hop)] += 1
            sizes[hop_name(record.hop)] += len(record.message)
    except BundleError as error:
        return [str(error)]
    report.counts = {name: HopCount(count, sizes[name]) for name, count in messages.items()}
    problems = []
    if manifest is not None and report.counts != manifest.counts:
        problems.append(f"the counts of {WIRE_FILE} differ from those of the manifest. Restore both")
    if manifest is not None and bundle.settings != manifest.settings:
        problems.append(f"the settings in {WIRE_FILE} differ from those of the manifest. Restore both")
    return problems
