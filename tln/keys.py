"""The run key and every random number of the defence that is derived from it.

A run key is 256 bits from the operating system. A stream key is HMAC-SHA-256 of the run key over (scope, step,
purpose); the stream itself is ChaCha20 in counter mode under that key. So the streams are one-way functions of the
run key, no two of them overlap, and a step protected again after a crash gives the same bytes. ChaCha20 instead of
one hash a block of eight bytes, because a frame takes millions of uniforms and hashing them one by one costs five
times as much.

Invariants: uniforms are in (0, 1) with 53 bits; Gaussians are Box-Muller in float64; permutations are the order of
uniforms; rotations are Haar (Householder reflections). Everything is vectorised over frames.

Caveat: log, sin and reflections may differ in the last bit between builds and thread counts, so replay is bit-identical
only on the same build. Rounding Gaussians to float32 also leaves gaps that an ideal Gaussian does not have.

The run key never crosses. It is written sealed to the auditor's public key only.

Shapes: N frames, R rows, D width.
"""

from __future__ import annotations

import hmac
import math
import os
import struct

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from splitwire.errors import SettingsError
from tln.ratchet import Ratchet

KEY_BYTES = 32

_DOMAIN = b"splitwire/run-key/v1"
_RATCHET_DOMAIN = b"splitwire/ratchet/v1"
_STEP_DOMAIN = b"splitwire/stepped-down/v1"
_NONCE = bytes(16)
_MANTISSA_SHIFT = 11
_MANTISSA_UNIT = 2.0**-53

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class RunKey:
    """The secret of one run. `repr` never shows it."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise SettingsError(f"a run key has {KEY_BYTES} bytes, got {len(secret)}", remedy="use an unsealed run key")
        self._secret = secret

    @classmethod
    def generate(cls) -> RunKey:
        """A fresh key from the operating system."""
        return cls(os.urandom(KEY_BYTES))

    def reveal(self) -> bytes:
        """The secret itself, for sealing. TLN only."""
        return self._secret

    def stream(self, scope: str, step: int, purpose: str) -> KeyStream:
        """The stream of (scope, step, purpose); the scope is a session hash, or a name for what never crosses."""
        encoded = scope.encode("utf-8")
        message = _DOMAIN + struct.pack(">HQ", len(encoded), step) + encoded + purpose.encode("utf-8")
        return KeyStream(hmac.digest(self._secret, message, "sha256"))

    def derive(self, scope: str) -> bytes:
        """The master of a scope's ratchet. TLN only."""
        return hmac.digest(self._secret, _RATCHET_DOMAIN + scope.encode("utf-8"), "sha256")

    def step_down(self) -> None:
        """Puts a one-way function of the secret in its place: later streams are others, earlier ones are out of reach.

        Who holds the sealed secret takes the same step.
        """
        self._secret = hmac.digest(self._secret, _STEP_DOMAIN, "sha256")

    def __repr__(self) -> str:
        return "RunKey(...)"


class FrameKeys:
    """The streams of one scope: mechanisms and the gradient policy hold one of these, shared.

    `bind` names the scope, normally the session hash once the session is open. Streams asked for before are an error of
    ours: a stream of the wrong scope would repeat noise in the next session. With `ratchet_steps` each stream derives
    from the key of its step's epoch (tln.ratchet); earlier epochs stay within reach until `forget`.
    """

    def __init__(self, run_key: RunKey, scope: str = "", ratchet_steps: int = 0) -> None:
        self._run_key: RunKey | None = run_key
        self._scope = scope
        self._ratchet_steps = ratchet_steps
        self._ratchet: Ratchet | None = None

    @property
    def scope(self) -> str:
        """The name bound last; empty before the first."""
        return self._scope

    def bind(self, scope: str) -> None:
        """Derives every later stream under this scope."""
        self._scope, self._ratchet = scope, None

    def forget(self) -> None:
        """Keeps nothing from which streams of earlier epochs derive. For a ratchet, once the scope is bound."""
        if not self._ratchet_steps or not self._scope:
            raise RuntimeError("only a ratchet with a scope can go on without the run key")
        self._ratchet = self._ratchet or self._new_ratchet()
        self._run_key = None

    def stream(self, step: int, purpose: str) -> KeyStream:
        """The stream of this scope's step for one purpose. Ask once a step and purpose: asking again repeats it."""
        if not self._scope:
            raise RuntimeError("no session is bound to the frame keys")
        return self._key_of(step).stream(self._scope, step, purpose)

    def _key_of(self, step: int) -> RunKey:
        if not self._ratchet_steps and self._run_key is not None:
            return self._run_key
        if self._ratchet is None or (self._run_key is not None and not self._ratchet.reaches(step)):
            self._ratchet = self._new_ratchet()
        return RunKey(self._ratchet.key_for(step))

    def _new_ratchet(self) -> Ratchet:
        if self._run_key is None:
            raise RuntimeError("the run key was forgotten; no scope can be bound any more")
        return Ratchet(self._run_key.derive(self._scope), self._ratchet_steps)


class KeyStream:
    """One stream of random numbers. Each call takes the next ones."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()

    def uniforms(self, *shape: int) -> Floats:
        """Uniform in (0, 1), zeros skipped."""
        count = math.prod(shape)
        values = self._raw_uniforms(count)
        while values.size < count:
            values = np.concatenate((values, self._raw_uniforms(count - values.size)))
        return values.reshape(shape)

    def _raw_uniforms(self, count: int) -> Floats:
        words = np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8")
        # 53 bits fit a signed integer, whose conversion is the faster one
        values: Floats = (words >> np.uint64(_MANTISSA_SHIFT)).view(np.int64).astype(np.float64)
        values *= _MANTISSA_UNIT
        return values if count == 0 or values.min() > 0 else values[values > 0]

    def normals(self, *shape: int) -> Floats:
        """Standard Gaussian by Box-Muller: radii from the first half of the uniforms, angles from the second."""
        values: Floats = self._gaussians(math.prod(shape)).numpy().reshape(shape)
        return values

    def _gaussians(self, count: int) -> torch.Tensor:
        """[count] float64. In place and with torch's vectorised cosine: a frame takes a hundred thousand of them."""
        uniforms = torch.from_numpy(self.uniforms(2, (count + 1) // 2))
        radius, angle = uniforms[0].log_().mul_(-2.0).sqrt_(), uniforms[1].mul_(2.0 * math.pi)
        values = torch.empty_like(uniforms)
        torch.cos(angle, out=values[0])
        torch.sin(angle, out=values[1])
        return values.mul_(radius).flatten()[:count]

    def gaussian_like(self, rows: torch.Tensor, sigma: float) -> torch.Tensor:
        """Gaussian of standard deviation `sigma`, in the shape, dtype and on the device of `rows`."""
        return self._gaussians(rows.numel()).mul_(sigma).view(rows.shape).to(rows.device, rows.dtype)

    def permutations(self, num: int, size: int) -> Integers:
        """[num, size] independent uniform permutations of 0..size-1: the order of as many uniforms, all frames at once.

        Two uniforms are equal in fewer than size**2 / 2**54 of the frames; the order of such a pair is then fixed.
        """
        order: Integers = np.argsort(self.uniforms(num, size), axis=1, kind="stable")
        return order

    def subsets(self, num: int, population: int, size: int) -> Integers:
        """[num, size] independent uniform subsets of 0..population-1, each without repetition, in no useful order.

        Floyd's algorithm (Bentley and Floyd 1987), all frames at once.
        """
        last = np.arange(population - size, population)
        chosen: Integers = np.ascontiguousarray((self.uniforms(num, size) * (last + 1)).astype(np.int64).T)
        for index in range(1, size):
            taken = (chosen[:index] == chosen[index]).any(axis=0)
            chosen[index, taken] = last[index]
        return np.ascontiguousarray(chosen.T)

    def rotations(self, num: int, width: int) -> torch.Tensor:
        """[num, width, width] float64 independent Haar rotations of O(width).

        A product of reflections, each along a Gaussian vector one shorter than the last (Stewart 1980): what QR of a
        Gaussian matrix gives, without the matrix and at half the cost.
        """
        rows, columns = torch.tril_indices(width, width)
        vectors = torch.zeros(num, width, width, dtype=torch.float64)
        vectors[:, rows, columns] = self._gaussians(num * len(rows)).view(num, -1)
        norms = torch.linalg.vector_norm(vectors, dim=1)
        first = torch.diagonal(vectors, dim1=1, dim2=2)
        signs = torch.where(first < 0, -1.0, 1.0).to(first.dtype)
        first = first + signs * norms
        scales = first.abs() / norms
        scales[:, -1] = 0.0  # the last vector has one value: a sign, no reflection
        signs[:, :-1].neg_()
        reflections: torch.Tensor = torch.linalg.householder_product(vectors / first.unsqueeze(1), scales)
        return reflections * signs.unsqueeze(1)

    def generator(self) -> torch.Generator:
        """A torch generator seeded from this stream, for initial weights and the order of batches; never for noise."""
        seed = int.from_bytes(self._encryptor.update(bytes(8)), "little") >> 1
        return torch.Generator().manual_seed(seed)
