"""What an audit is given: bundles, truth files and keys, opened and checked before anything is attacked.

A bundle that was changed after its recorder closed it is refused (BundleError): it is not evidence. A bundle that is
incomplete, dropped messages or lacks truth is read as far as it goes, and the audit cannot pass. A truth file is
looked for in each bundle (truth.sealed) unless files are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auditor.evidence.mixture import refuse_mixed_settings
from auditor.progress import Progress, silent
from splitwire.bundles import (
    TRUTH_FILE,
    Bundle,
    SnapshotBundle,
    Truth,
    VerifyReport,
    is_snapshot_bundle,
    open_bundle,
    open_snapshots,
    read_truth,
    verify_bundle,
)
from splitwire.bundles.manifest import MANIFEST_FILE, WIRE_FILE, hash_file
from splitwire.errors import BundleError, SettingsError


@dataclass(frozen=True)
class Evidence:
    """Opened inputs. `problems` keep the verdict from being a pass; `notes` do not."""

    bundles: list[Bundle | SnapshotBundle]
    truths: list[Truth]
    summaries: list[dict[str, Any]]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ungauged: Path | None = None
    """Folder of rows without gauges, for what an attacker reads of frames whose gauges leaked."""


def open_evidence(
    folders: Sequence[Path],
    *,
    key: Path,
    truth_files: Sequence[Path] = (),
    trust: Path | None = None,
    ungauged: Path | None = None,
    progress: Progress = silent,
) -> Evidence:
    """Verifies and opens everything. SealError for a wrong key, BundleError for a changed bundle."""
    if not folders:
        raise SettingsError("no bundle is given", remedy="name at least one BUNDLE folder")
    evidence = Evidence([], [], [], ungauged=ungauged)
    for number, folder in enumerate(folders):
        progress(f"verifying {folder.name}", number, len(folders))
        bundle = open_snapshots(folder) if is_snapshot_bundle(folder) else open_bundle(folder)
        report = verify_bundle(folder, trust)
        _refuse_changed(folder, report)
        evidence.bundles.append(bundle)
        evidence.summaries.append(_summary(bundle, report))
        evidence.problems.extend(f"bundle {folder.name}: {problem}" for problem in report.problems)
        evidence.notes.extend(f"bundle {folder.name}: {note}" for note in report.notes)
    refuse_mixed_settings(evidence.bundles)
    files = _truth_files(folders, truth_files)
    progress("opening the truth", 0, 0)
    evidence.truths.extend(read_truth(file, key) for file in files)
    if not files:
        evidence.problems.append("no truth file: give the trusted node's truth.sealed with --truth")
    return evidence


def evidence_digests(folders: Sequence[Path], truth_files: Sequence[Path] = ()) -> dict[str, list[str]]:
    """SHA-256 of what stands for each bundle (its manifest, which names every file; else wire.mcap), and each truth."""
    heads = [_head(folder) for folder in folders]
    truths = _truth_files(folders, truth_files)
    return {"bundles": [_digest(file) for file in heads], "truths": [_digest(file) for file in truths]}


def _digest(file: Path) -> str:
    try:
        return hash_file(file).sha256
    except OSError as error:
        raise BundleError(
            f"{file} cannot be read: {error.strerror}", remedy="name folders that a recorder wrote, and truth files"
        ) from None


def _head(folder: Path) -> Path:
    """The file that stands for the bundle; of snapshots that were cut off, the last one."""
    if (folder / MANIFEST_FILE).is_file():
        return folder / MANIFEST_FILE
    return open_snapshots(folder).entries[-1].path if is_snapshot_bundle(folder) else folder / WIRE_FILE


def _truth_files(folders: Sequence[Path], named: Sequence[Path]) -> list[Path]:
    """The named files; else those that lie in the bundles."""
    found = list(named) or [folder / TRUTH_FILE for folder in folders if (folder / TRUTH_FILE).is_file()]
    return list(dict.fromkeys(found))


def _refuse_changed(folder: Path, report: VerifyReport) -> None:
    """What a complete bundle has beyond a count of drops is a sign of change."""
    allowed = 1 if report.num_dropped else 0
    if report.is_complete and len(report.problems) > allowed:
        first = report.problems[0]
        raise BundleError(f"bundle {folder} does not verify: {first}", remedy=f"see `auditor verify {folder}`")


def _summary(bundle: Bundle | SnapshotBundle, report: VerifyReport) -> dict[str, Any]:
    manifest = bundle.manifest or {}
    return {
        "name": bundle.folder.name,
        "recorder": bundle.recorder,
        "is_complete": report.is_complete,
        "is_signed": report.is_signed,
        "signer": report.signer,
        "num_dropped": report.num_dropped,
        "num_sessions": len(bundle.sessions()),
        "settings_hash": manifest.get("settings_hash"),
        "versions": bundle.versions,
        "settings": bundle.settings,
        "counts": {hop: {"messages": c.messages, "bytes": c.bytes} for hop, c in report.counts.items()},
    }
