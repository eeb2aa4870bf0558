"""Continuous batching: one thread that takes all texts a step further, as many as are ready, and lets them come and go.

Any thread may call what is here; what the engine's thread does to the texts is in tln.serve.batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from splitwire.errors import InternalError
from splitwire.logging import get_logger
from tln.serve.active import ActiveText, Reader
from tln.serve.admission import Admission
from tln.serve.batch import Batch
from tln.serve.errors import from_failure, stopping
from tln.serve.inbox import Inbox
from tln.serve.layers import LocalLayers
from tln.serve.links import LinkPool
from tln.serve.metrics import ServeMetrics
from tln.serve.prompts import TextRequest
from tln.serve.settings import ServeSettings
from tln.texts import TextLog

_log = get_logger(__name__)


class Engine:
    """Generates texts over the links. `ends` are the tokens that end a text; `texts` is told the truth about each."""

    def __init__(
        self,
        layers: LocalLayers,
        links: LinkPool,
        tokenizer: Any,
        ends: frozenset[int],
        settings: ServeSettings,
        prefill_positions: int,
        metrics: ServeMetrics,
        texts: TextLog | None = None,
    ) -> None:
        self._links = links
        self._tokenizer = tokenizer
        self.ends = ends
        self._inbox = Inbox()
        self._is_stopped = False
        self._admission = Admission(settings.max_running + settings.max_waiting, settings.retry_after_seconds)
        self.batch = batch = Batch(
            layers, links, prefill_positions, metrics, texts, self._inbox.put, self._admission.give_back
        )
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        metrics.watch(lambda: len(batch.running), lambda: len(batch.waiting), lambda: links.num_open)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    @property
    def is_refusing(self) -> bool:
        """Whether no text is taken on any more."""
        return self._admission.is_refusing

    @property
    def is_connected(self) -> bool:
        """Whether a session is up, as far as this side has heard."""
        return self._links.is_connected

    def reconnect(self) -> None:
        """Has a session opened when none is up and no text is about to open one."""
        self._inbox.put(self.batch.reconnect)

    def submit(self, requests: Sequence[TextRequest], readers: Sequence[Reader]) -> list[ActiveText]:
        """Takes on all texts or none: ApiError 429 when too many wait, 503 when it is stopping."""
        self._admission.take(len(requests))
        texts = [
            ActiveText(request, reader, self._tokenizer, self.ends)
            for request, reader in zip(requests, readers, strict=True)
        ]
        self._inbox.put(partial(self.batch.waiting.extend, texts))
        return texts

    def cancel(self, texts: Sequence[ActiveText]) -> None:
        """Ends texts that nobody reads any more; those that are over are left alone."""
        self._inbox.put(partial(self.batch.cancel, texts))

    def drain(self, seconds: float) -> bool:
        """Refuses new texts from now on and waits for those there are; whether they ended in time."""
        self._admission.refuse()
        return self._admission.wait_empty(seconds)

    def fail_all(self) -> None:
        """Ends all texts with an error: the time to drain is over."""
        self._inbox.put(partial(self.batch.fail_all, stopping()))

    def stop(self) -> None:
        """Fails what still runs and ends the thread. The links stay with whoever made them."""
        self._admission.refuse()
        self._inbox.put(self._stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._inbox.take(
                    blocks=not self.batch.has_ready,
                    patience_seconds=self.batch.patience_seconds,
                    is_worth_waiting=self.batch.is_worth_waiting,
                )
                self.batch.advance()
        except Exception as error:  # noqa: BLE001 - a thread that dies in silence would leave its readers waiting
            _log.error("the engine failed", exc_info=True)
            self._admission.refuse(from_failure(error))
            self._stop(InternalError("the engine failed"))

    def _stop(self, reason: Exception | None = None) -> None:
        self._is_stopped = True
        self.batch.give_up(reason or stopping())
