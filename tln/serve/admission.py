"""How many texts are taken on: a bound on those that run and wait together, and none once the server is stopping."""

from __future__ import annotations

import threading

from tln.serve.errors import ApiError, stopping


class Admission:
    """Counts texts from when they are taken on until they are over. Any thread may use it."""

    def __init__(self, limit: int, retry_after: int) -> None:
        self._limit = limit
        self._retry_after = retry_after
        self._count = 0
        self._refusal: ApiError | None = None
        self._changed = threading.Condition()

    @property
    def is_refusing(self) -> bool:
        """Whether no text is taken on any more."""
        return self._refusal is not None

    def take(self, count: int) -> None:
        """Takes on all of them; ApiError 429 when that is too many, 503 when the server is stopping."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            if self._count + count > self._limit:
                raise ApiError(
                    429,
                    f"{self._count} texts run or wait, of at most {self._limit}. Try again later.",
                    code="queue_full",
                    retry_after=self._retry_after,
                )
            self._count += count

    def give_back(self, count: int = 1) -> None:
        """So many are over."""
        with self._changed:
            self._count -= count
            self._changed.notify_all()

    def refuse(self, reason: ApiError | None = None) -> None:
        """Takes on none from now on."""
        with self._changed:
            self._refusal = reason or stopping()

    def wait_empty(self, seconds: float) -> bool:
        """Waits until all are over; False when that took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, seconds)
