"""Reads a bundle as a stream: messages as they crossed, and the tensors put together from them.

Nothing is loaded whole. A bundle that was cut off reads up to its last whole chunk and is not complete. What breaks
the contract inside recorded messages (a peer may send anything) does not stop reading: it is left out and told in
`problems`. Whether the bundle is authentic is a question for `splitwire.bundles.verify`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from splitwire.bundles.container import WireFile
from splitwire.bundles.manifest import WIRE_FILE, Manifest, read_manifest
from splitwire.bundles.records import ChannelKey, RecordedFrame, WireRecord
from splitwire.bundles.writer import SETTINGS_METADATA
from splitwire.errors import BundleError
from splitwire.v1 import channels_pb2

if TYPE_CHECKING:
    from splitwire.frames import FrameLimits


def open_bundle(folder: Path) -> Bundle:
    """Opens a bundle, complete or cut off. BundleError when the folder does not hold one."""
    return Bundle(folder, read_manifest(folder))


class Bundle:
    """A recorded bundle. Iterators are independent of one another and may be started again."""

    def __init__(self, folder: Path, manifest: Manifest | None) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._wire = WireFile(folder / WIRE_FILE)
        self._manifest = manifest
        self._head = self._read_head()

    @property
    def manifest(self) -> dict[str, Any] | None:
        """The manifest as plain values; None when the recorder did not close the bundle."""
        return None if self._manifest is None else dataclasses.asdict(self._manifest)

    @property
    def settings(self) -> dict[str, Any]:
        """The effective settings of the recording program; known even of a bundle that was cut off."""
        return cast("dict[str, Any]", self._head["settings"])

    @property
    def versions(self) -> dict[str, str]:
        """Software versions of the recording program."""
        return cast("dict[str, str]", self._head["versions"])

    @property
    def recorder(self) -> str:
        """Which recorder wrote it, such as tln or tap."""
        return str(self._head["recorder"])

    @property
    def num_dropped(self) -> int | None:
        """Messages that the recorder dropped; None when it did not get to say."""
        return None if self._manifest is None else self._manifest.num_dropped

    @cached_property
    def is_complete(self) -> bool:
        """Whether the recorder closed the bundle and wire.mcap has the length that it had then."""
        if self._manifest is None or WIRE_FILE not in self._manifest.files:
            return False
        return self._wire.path.stat().st_size == self._manifest.files[WIRE_FILE].bytes

    def sessions(self) -> list[str]:
        """Hashes of the sessions, in the order in which they first spoke."""
        keys = (ChannelKey.from_metadata(channel.metadata) for channel in self._wire.channels())
        return list(dict.fromkeys(key.session_hash for key in keys if key.session_hash))

    def messages(self, hop: channels_pb2.Hop | int | None = None, session: str | None = None) -> Iterator[WireRecord]:
        """Messages in the order of recording, all or of one hop or session."""
        keys: dict[int, ChannelKey] = {}
        for channel, message in self._wire.messages():
            if channel.id not in keys:
                keys[channel.id] = ChannelKey.from_metadata(channel.metadata)
            key = keys[channel.id]
            if hop in (None, key.hop) and session in (None, key.session_hash):
                yield WireRecord(
                    key.hop,
                    key.direction,
                    key.session_hash,
                    message.data,
                    message.publish_time,
                    message.log_time,
                    key.kind,
                )

    def frames(
        self, hop: channels_pb2.Hop | int, session: str | None = None, *, limits: FrameLimits | None = None
    ) -> Iterator[RecordedFrame]:
        """Tensors of one hop in the order in which they were complete.

        A frame that was sent again with the same bytes is given once. Frames that break the contract, exceed `limits`
        or miss a message are left out and told in `problems`.
        """
        from splitwire.bundles.assembly import assemble  # noqa: PLC0415 - a recorder must not load torch

        return assemble(self.messages(hop, session), self._note, limits)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _read_head(self) -> dict[str, Any]:
        head = self._wire.metadata(SETTINGS_METADATA) or {}
        try:
            settings, versions = json.loads(head["settings"]), json.loads(head["versions"])
            return {"settings": settings, "versions": versions, "recorder": head["recorder"]}
        except (KeyError, ValueError, RecursionError):
            raise BundleError(
                f"{self._wire.path} does not begin with the settings of a recorder",
                remedy="give a folder that splitwire recorded",
            ) from None
