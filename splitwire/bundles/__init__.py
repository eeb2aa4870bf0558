"""Wire bundles: what an untrusted node could see, byte for byte, and the sealed truth that scores attacks on it; and
snapshot bundles: what it trained.

Importing this loads neither torch nor a model; only reading frames does.
"""

from __future__ import annotations

from splitwire.bundles.manifest import HopCount, Manifest
from splitwire.bundles.reader import Bundle, open_bundle
from splitwire.bundles.recorder import Recorder
from splitwire.bundles.records import RecordedFrame, WireRecord, frame_digest, hop_name
from splitwire.bundles.snapshots import (
    SnapshotBundle,
    SnapshotTensors,
    SnapshotWriter,
    is_snapshot_bundle,
    open_snapshots,
)
from splitwire.bundles.texts import TextTruth
from splitwire.bundles.truth import TRUTH_FILE, Document, Truth, TruthRecord, TruthWriter, read_truth
from splitwire.bundles.verify import VerifyReport, verify_bundle
from splitwire.bundles.writer import BundleWriter

__all__ = [
    "TRUTH_FILE",
    "Bundle",
    "BundleWriter",
    "Document",
    "HopCount",
    "Manifest",
    "RecordedFrame",
    "Recorder",
    "SnapshotBundle",
    "SnapshotTensors",
    "SnapshotWriter",
    "TextTruth",
    "Truth",
    "TruthRecord",
    "TruthWriter",
    "VerifyReport",
    "WireRecord",
    "frame_digest",
    "hop_name",
    "is_snapshot_bundle",
    "open_bundle",
    "open_snapshots",
    "read_truth",
    "verify_bundle",
]
