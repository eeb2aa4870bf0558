"""Records what crosses into a wire bundle, with the truth and the run key sealed for the auditor beside it.

    FOLDER/wire.mcap        every message, byte for byte, as this node sent or received it
    FOLDER/truth.sealed     what each row really is, sealed to the auditor's key
    FOLDER/run-key.sealed   the run key, sealed separately, so that an audit can replay the run
    FOLDER/manifest.json    written last; a bundle without it is incomplete

    recording = open_recording(settings, effective={...}, run_key=key, facts={...}, documents=[...])
    recording.attach(transport)          before the session is opened
    recording.follow(crossing)           once it is
    recording.close()                    or abandon(), after a failure; see tln.connect.recorded

Refused: a folder that is not empty, an audit key or signing key that does not load, and going on once nothing can
be written: the next frame then raises RecordingError instead of crossing unrecorded.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from splitwire.bundles import TRUTH_FILE, BundleWriter, Recorder, TruthWriter
from splitwire.bundles.writer import make_empty_folder
from splitwire.errors import SettingsError
from splitwire.private_files import write_private_file
from splitwire.sealing import load_sealing_public_key, load_signing_key, seal
from tln.context import RowTruth, StepContext
from tln.crossing import Crossing
from tln.exchanges import Transport
from tln.keys import RunKey
from tln.texts import TextLog
from tln.truth import record_truth

RUN_KEY_FILE = "run-key.sealed"
RUN_KEY_PURPOSE = "run-key"
_RECORDER = "tln"


@dataclass(frozen=True)
class RecordSettings:
    """Whether and where to record. An empty folder records nothing."""

    folder: str = ""
    """New folder for the sealed truth, the sealed run key and the bundle; empty records nothing."""
    wire: bool = True
    """Whether the messages themselves are recorded here; false where a tap records them."""
    audit_key: str = ""
    """The auditor's public key (audit.pub); truth and run key are sealed to it. Empty records the wire alone."""
    signing_key: str = ""
    """This recorder's Ed25519 key (tln-recorder.key). Empty leaves the manifest unsigned."""
    when_full: Literal["wait", "drop"] = "wait"
    """What a slow disk does: hold up the run, or lose messages; a bundle with losses cannot pass an audit."""


class Recording:
    """One run being recorded. `truth` and `texts` are None without an audit key."""

    def __init__(self, folder: Path, recorder: Recorder | None, truth: TruthWriter | None) -> None:
        self.folder = folder
        self.truth = truth
        self.texts = None if truth is None else TextLog(truth)
        self._recorder = recorder
        self._endings: list[Callable[[], None]] = []
        self._has_session = False

    def attach(self, transport: Transport) -> None:
        """Records every message of the transport from now on."""
        if self._recorder is not None:
            offer = self._recorder.offer
            transport.observers.append(offer)
            self._endings.append(lambda: transport.observers.remove(offer))

    def follow(self, crossing: Crossing) -> None:
        """Records the truth about every frame of the crossing, and stops the run when recording has failed."""
        self._has_session = True
        crossing.forward_listeners.append(self._refuse_unrecorded)
        self._endings.append(lambda: crossing.forward_listeners.remove(self._refuse_unrecorded))
        if self.truth is not None:
            self._endings.append(record_truth(crossing, self.truth))

    def close(self) -> None:
        """Completes the bundle. RecordingError when it cannot be completed."""
        self._detach()
        if self.truth is not None:
            self.truth.close()
        if self._recorder is not None:
            self._recorder.close()

    def abandon(self) -> None:
        """Ends without completing: the bundle stays readable and says that it is incomplete.

        Before a session is open no row has crossed; the folder then goes again, so that the run can be tried anew.
        """
        self._detach()
        if self.truth is not None:
            self.truth.abandon()
        if self._recorder is not None:
            self._recorder.abandon()
        if not self._has_session:
            shutil.rmtree(self.folder, ignore_errors=True)

    def raise_if_failed(self) -> None:
        """RecordingError when the bundle could not be written."""
        if self._recorder is not None:
            self._recorder.raise_if_failed()

    def _refuse_unrecorded(self, _context: StepContext, _truth: RowTruth | None, _messages: Sequence[bytes]) -> None:
        self.raise_if_failed()

    def _detach(self) -> None:
        while self._endings:
            self._endings.pop()()


def check_recording(settings: RecordSettings) -> None:
    """SettingsError for keys without a folder, a folder into which nothing would go, and one that holds something."""
    if not settings.folder and (settings.audit_key or settings.signing_key):
        raise SettingsError("record has keys and no folder", remedy="set record.folder, or remove the keys")
    if settings.folder and not settings.wire and not settings.audit_key:
        raise SettingsError(
            "record.wire is false and record.audit_key is empty, so nothing would be recorded",
            remedy="name the audit.pub of `auditor keygen`",
        )
    folder = Path(settings.folder)
    if settings.folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            f"record.folder {folder} is not empty", remedy="name a new folder; a bundle is never written over"
        )


def open_recording(
    settings: RecordSettings,
    *,
    effective: Mapping[str, Any],
    run_key: RunKey,
    facts: Mapping[str, Any] | None = None,
    documents: Sequence[Mapping[str, Any]] = (),
) -> Recording | None:
    """Starts to record; None when the settings name no folder.

    `effective` holds the settings and the defence in force, for the bundle. `facts` (what a scorer needs to know, such
    as the vocabulary's size) and `documents` go to the truth file.
    """
    check_recording(settings)
    if not settings.folder:
        return None
    folder = Path(settings.folder)
    recipient = load_sealing_public_key(Path(settings.audit_key)) if settings.audit_key else None
    recorder = _open_recorder(settings, folder, effective)
    if recorder is None:
        make_empty_folder(folder)
    if recipient is None:
        return Recording(folder, recorder, None)
    truth = TruthWriter(folder / TRUTH_FILE, recipient, facts)
    truth.add_documents(documents)
    write_private_file(folder / RUN_KEY_FILE, seal(run_key.reveal(), recipient, RUN_KEY_PURPOSE))
    return Recording(folder, recorder, truth)


def _open_recorder(settings: RecordSettings, folder: Path, effective: Mapping[str, Any]) -> Recorder | None:
    signing_key = load_signing_key(Path(settings.signing_key)) if settings.signing_key else None
    if not settings.wire:
        return None
    writer = BundleWriter(folder, recorder=_RECORDER, settings=effective, signing_key=signing_key)
    return Recorder(writer, when_full=settings.when_full)
