"""How everything that writes a file in pieces ends: completed when its block ends well, abandoned when it raises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ClosesOrAbandons(ABC):
    """A context manager over `close` and `abandon`, so that no half-written file passes for whole."""

    @abstractmethod
    def close(self) -> None:
        """Completes what is being written."""

    @abstractmethod
    def abandon(self) -> None:
        """Ends without completing it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
