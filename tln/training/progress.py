"""How long work tells how far it is, without knowing who shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One task at a time. Texts and numbers only about the work, never about content."""

    def begin(self, task: str, total: int) -> None:
        """A new task of `total` units begins; the one before it has ended."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` more units are done; `note` is a short state, such as the loss."""


class NoProgress:
    """Shows nothing."""

    def begin(self, task: str, total: int) -> None:
        """Nothing."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Nothing."""
