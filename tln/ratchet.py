"""The key ratchet: one key an epoch of steps, each a one-way function of the one before, and the old ones forgotten.

    K_0 = SHA-256(domain || master || 0)        K_e = SHA-256(domain || K_(e-1) || e)        e as u64, big-endian

Who reads the memory of the trusted node can derive the gauges and the noise of this epoch, of the one before and of
all later ones, and of none earlier. The epoch before is kept because its gradients may still be due. It is only worth
something where the run key itself is gone: `tln.connect` seals it to the auditor first and steps it down then, and
checkpoints, which need it on disk, are refused (`tln.settings`). Python cannot overwrite memory for certain: a
forgotten key is unreachable, and its bytes may stay until the memory is used again.

Refused: a step of a forgotten epoch. Source: the key derivation of Privacy Failure in Split-LLM
Training; there the master stayed in memory.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from splitwire.errors import SettingsError, StateError

_DOMAIN = b"splitwire/epoch-key/v1"
_MAX_STEPS = 1 << 31


@dataclass(frozen=True)
class KeySettings:
    """How keys of the frame age."""

    ratchet_steps: int = 0
    """Steps after which gauges and noise take a new key and old keys are forgotten; 0 for one key a run."""


class Ratchet:
    """The epoch keys of one scope. Goes forward only."""

    def __init__(self, master: bytes, steps: int) -> None:
        self._steps = steps
        self._epoch = 0
        self._before: bytes | None = None
        self._key = _advance(master, 0)

    def reaches(self, step: int) -> bool:
        """Whether the key of the step is not forgotten."""
        return step // self._steps >= self._epoch - (self._before is not None)

    def key_for(self, step: int) -> bytes:
        """The 32-byte key of the step's epoch. TLN only."""
        if not self.reaches(step):
            raise StateError(
                f"step {step} is of an epoch whose key is forgotten",
                remedy="finish a step before keys.ratchet_steps more have begun, or raise keys.ratchet_steps",
            )
        while self._epoch < step // self._steps:
            self._epoch += 1
            self._before, self._key = self._key, _advance(self._key, self._epoch)
        return self._key if self._before is None or step // self._steps == self._epoch else self._before


def check_keys(settings: KeySettings) -> None:
    """SettingsError for a number out of range."""
    if not 0 <= settings.ratchet_steps <= _MAX_STEPS:
        raise SettingsError(
            f"keys.ratchet_steps is {settings.ratchet_steps}", remedy=f"use 0 (one key a run) to {_MAX_STEPS}"
        )


def _advance(key: bytes, epoch: int) -> bytes:
    return hashlib.sha256(_DOMAIN + key + struct.pack(">Q", epoch)).digest()
