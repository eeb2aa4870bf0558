"""The error tree that all programs share, and the exit code of each branch.

    SplitwireError                 exit 2
    |-- SettingsError              exit 2   a setting, a command-line value or a file the user named
    |-- ModelError                 exit 2   a model that is missing, unsupported or cut impossibly
    |-- PkiError                   exit 2   keys, certificates, signing requests
    |-- BundleError                exit 4   a bundle that is truncated, tampered with, or not one
    |-- SealError                  exit 4   sealed data that does not open with the given key
    |-- RecordingError             exit 5   a recorder that cannot write
    |-- PeerError                  exit 6   what the other side sent or refused
    |   |-- FrameError                      a tensor or stream that breaks the contract
    |   |-- HandshakeError                  the two sides do not agree
    |   |-- StateError                      the session is not in a state for that
    |   |-- ReplayError                     a step that was already taken with other bytes, or is out of order
    |   |-- LimitError                      more than the receiver allows
    |   |-- AuthError                       not authenticated or not authorised
    |   `-- UnavailableError                the peer is gone, draining or unreachable; may be tried again
    `-- InternalError              exit 70  a bug; its text never reaches a peer

A message says what is wrong (field and value), what would be right, and what to do. It carries ids (session hash,
step), never content: no text, no token, no tensor value, no document.
"""

from __future__ import annotations


class SplitwireError(Exception):
    """A failure that a user or a peer can act on. `exit_code` is what a program returns for it."""

    exit_code = 2

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


class SettingsError(SplitwireError):
    """A setting, a command-line value or a named file is wrong."""


class ModelError(SplitwireError):
    """A model is missing, of an unsupported family, or cut where it cannot be."""


class PkiError(SplitwireError):
    """A key, certificate or signing request is missing, unreadable or not acceptable."""


class BundleError(SplitwireError):
    """A bundle is truncated, tampered with, or not a bundle."""

    exit_code = 4


class SealError(SplitwireError):
    """Sealed data does not open with the given key, or was changed."""

    exit_code = 4


class RecordingError(SplitwireError):
    """A recorder cannot write, for instance because the disk is full."""

    exit_code = 5


class PeerError(SplitwireError):
    """The other side sent, or refused, something."""

    exit_code = 6


class FrameError(PeerError):
    """A tensor or a stream breaks the contract."""


class HandshakeError(PeerError):
    """The two sides do not agree on protocol, model, layers, dtype or stack."""


class StateError(PeerError):
    """The session is not in a state for that message."""


class ReplayError(PeerError):
    """A step comes again with other bytes, or out of order."""


class LimitError(PeerError):
    """More than the receiver allows: size, rows, sessions, cache bytes."""


class AuthError(PeerError):
    """The peer is not authenticated, or authenticated and not allowed."""

    def __init__(self, message: str, *, remedy: str = "", authenticated: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.authenticated = authenticated


class UnavailableError(PeerError):
    """The peer is unreachable, draining or gone; the call may be tried again."""


class InternalError(SplitwireError):
    """A bug of ours."""

    exit_code = 70
