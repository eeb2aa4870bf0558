"""The parts of bundles and of opened truth files that an audit reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol


class FrameSource(Protocol):
    """The part of a bundle that a capture reads."""

    problems: list[str]

    def frames(self, hop: Any, session: str | None = None) -> Iterator[Any]:
        """Recorded frames of one hop."""
        ...

    def messages(self, hop: Any = None, session: str | None = None) -> Iterator[Any]:
        """Recorded messages of one hop."""
        ...


class TruthSource(Protocol):
    """The part of an opened truth file that a capture reads."""

    @property
    def records(self) -> Mapping[tuple[str, int], Any]:
        """Truth of one frame by (session hash, step)."""
        ...

    @property
    def documents(self) -> Sequence[Mapping[str, Any]]:
        """The documents table."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the file has its end."""
        ...
