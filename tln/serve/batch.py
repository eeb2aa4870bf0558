"""All texts that wait or run, taken a step further together. Only the engine's thread uses it.

    answers of the untrusted node -> tail of all -> next tokens -> head of all -> each on its own link, all under way

A text whose prompt is long goes through in parts, at most `prefill_positions` new rows of all such texts a step, so
that the others go on. A text that was cancelled leaves when its frame is back, and its remote cache is freed before its
link takes another. What fails ends its own text and no other.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import torch

from splitwire.errors import LimitError, PeerError, RecordingError
from splitwire.logging import get_logger
from tln.serve.active import ActiveText
from tln.serve.inbox import News
from tln.serve.layers import LocalLayers
from tln.serve.links import Link, LinkPool, OpeningError
from tln.serve.metrics import ServeMetrics
from tln.serve.pace import Pace
from tln.serve.sessions import Passage, Session
from tln.texts import TextLog

_log = get_logger(__name__)


class Batch:
    """Texts over the links. `texts` is told the truth about each; `tell` puts what links hear before the engine's
    thread; `on_over` is called once for each text that is over.
    """

    def __init__(
        self,
        layers: LocalLayers,
        links: LinkPool,
        prefill_positions: int,
        metrics: ServeMetrics,
        texts: TextLog | None,
        tell: Callable[[News], None],
        on_over: Callable[[], None],
    ) -> None:
        self.waiting: deque[ActiveText] = deque()
        self.running: list[ActiveText] = []
        self.layers = layers
        self._links = links
        self._prefill_positions = prefill_positions
        self._metrics = metrics
        self._texts = texts
        self._tell = tell
        self._on_over = on_over
        self._pace = Pace()

    @property
    def has_ready(self) -> bool:
        """Whether a running text is ready to cross."""
        return any(self._idle())

    @property
    def patience_seconds(self) -> float:
        """How long a step waits after the first answer."""
        return self._pace.patience_seconds

    def is_worth_waiting(self) -> bool:
        """Whether some answers are there and more of the same step are about to come."""
        now = time.monotonic()
        return any(text.returned is not None for text in self.running) and any(
            text.is_under_way and text.num_new and not self._pace.is_late(now - text.sent_at) for text in self.running
        )

    def advance(self) -> None:
        """Begins what there is a place for, and takes every text that can go on a step further."""
        self._admit()
        if answered := [text for text in self.running if text.returned is not None]:
            self._guarded(answered, self._finish_pass)
        if ready := self._choose_ready():
            self._guarded(ready, self._begin_pass)

    def cancel(self, texts: Sequence[ActiveText]) -> None:
        """Ends texts that nobody reads any more; those that are over are left alone."""
        for text in texts:
            if text.has_ended:
                continue
            text.cancel()
            if text in self.waiting:
                self.waiting.remove(text)
                self._over(text)
            elif not text.is_under_way:
                self._leave(text)

    def reconnect(self) -> None:
        """Has a session opened when none is up."""
        link = self._links.take_for_reconnection()
        if link is not None:
            link.do(lambda _session: None, lambda _: self._tell(partial(_set_free, link)))

    def fail_all(self, reason: Exception) -> None:
        """Ends all texts; those that are under way leave when their frame is back."""
        for text in tuple(self.waiting):
            text.fail(reason)
            self.waiting.remove(text)
            self._over(text)
        for text in tuple(self.running):
            text.fail(reason)
            if not text.is_under_way:
                self._leave(text)

    def give_up(self, reason: Exception) -> None:
        """Ends all texts, and waits for no frame."""
        self.fail_all(reason)
        for text in self.running:
            self._over(text)

    def _idle(self) -> list[ActiveText]:
        """Running texts that are ready to cross."""
        return [text for text in self.running if not text.is_under_way and text.returned is None]

    def _admit(self) -> None:
        while self.waiting and (link := self._links.take()) is not None:
            text = self.waiting.popleft()
            text.begin(link, self.layers.new_caches())
            self.running.append(text)
            if self._texts is not None and text.document is None:
                try:
                    text.document = int(self._texts.begin(1)[0])
                except RecordingError as error:
                    self._leave(text, error)

    def _guarded(self, texts: list[ActiveText], work: Callable[[list[ActiveText]], None]) -> None:
        """A failure of the trusted layers, such as memory that is not there, ends the texts of the step alone."""
        try:
            work(texts)
        except Exception as error:  # noqa: BLE001 - told to the texts
            _log.error("a step failed", exc_info=True)
            for text in texts:
                if not text.is_under_way and text in self.running:
                    self._leave(text, error)

    def _choose_ready(self) -> list[ActiveText]:
        """Texts that can cross: all that decode, and of the others as many as the step has room for."""
        ready, room = [], self._prefill_positions
        for text in self._idle():
            if text.num_due > 1:
                if room <= 0:
                    continue
                room -= text.num_due
            ready.append(text)
        return ready

    def _begin_pass(self, texts: list[ActiveText]) -> None:
        """Head of all, then each on its own way."""
        tokens = [text.next_tokens(self._prefill_positions) for text in texts]
        with self._metrics.timed("head", len(texts)):
            rows = self.layers.head(tokens, [text.caches for text in texts])
        for text, each, new in zip(texts, rows, tokens, strict=True):
            past, is_reused = text.num_sent, text.link.is_open
            text.note_sent(len(new))
            text.link.do(partial(_carry, text, each, new, past), self._told(text, is_reused=is_reused))

    def _told(self, text: ActiveText, *, is_reused: bool) -> Callable[[Future[torch.Tensor]], None]:
        return lambda done: self._tell(partial(self._on_return, text, done, is_reused=is_reused))

    def _finish_pass(self, texts: list[ActiveText]) -> None:
        """Tail of all, and the next token of those whose tokens have all crossed."""
        rows = [text.take_returned() for text in texts]
        wanted = [index for index, text in enumerate(texts) if not text.num_due]
        with self._metrics.timed("tail", len(texts)):
            logits = self.layers.tail(rows, [text.caches for text in texts], wanted)
        for index, row in zip(wanted, logits, strict=True):
            self._guarded([texts[index]], partial(self._choose, row))

    def _choose(self, logits: torch.Tensor, texts: list[ActiveText]) -> None:
        """The next token of one text."""
        (text,) = texts
        choice = text.choose(logits)
        since = time.monotonic() - text.arrived_at if text.num_new == 1 else None
        self._metrics.count_choice(is_near_tie=choice.is_near_tie, seconds_since_arrival=since)
        if text.has_ended:
            self._leave(text)

    def _on_return(self, text: ActiveText, done: Future[torch.Tensor], *, is_reused: bool) -> None:
        text.is_under_way = False
        error = done.exception()
        if error is None:
            if text.num_new:
                self._pace.note(time.monotonic() - text.sent_at)
            text.returned, text.has_remote_cache = done.result(), True
            if text.has_ended:  # it was cancelled
                self._leave(text)
        elif self._may_begin_again(text, error, is_reused=is_reused):
            self.running.remove(text)
            text.link.is_busy = False
            text.was_tried = True
            self.waiting.appendleft(text)
        else:
            self._leave(text, error.cause if isinstance(error, OpeningError) else error)

    def _may_begin_again(self, text: ActiveText, error: BaseException, *, is_reused: bool) -> bool:
        """Whether a text waits again: no room for one more session, or an idle session was found dead."""
        if isinstance(error, OpeningError):
            self._links.pause_opening()
            return not text.has_ended and isinstance(error.cause, LimitError) and self._links.has_others(text.link)
        is_gone = isinstance(error, PeerError) and not isinstance(error, LimitError)
        return is_gone and is_reused and text.is_at_first_part and not (text.was_tried or text.has_ended)

    def _leave(self, text: ActiveText, error: BaseException | None = None) -> None:
        """Takes a text out of the batch; its link is free again when its remote cache is."""
        if error is not None:
            _log.warning("a text failed", error=type(error).__name__)
            text.fail(error)
        self.running.remove(text)
        text.let_go()
        self._over(text)
        link = text.link
        if text.has_remote_cache and link.is_open:
            link.do(partial(_release, text.cache_id), lambda _: self._tell(partial(_set_free, link)))
        else:
            _set_free(link)

    def _over(self, text: ActiveText) -> None:
        """What is done once for each text that was taken on."""
        if self._texts is not None and text.document is not None and text.num_sent:
            with contextlib.suppress(RecordingError):  # the next frame meets it, and stays here
                self._texts.end(text.document, text.tokens, text.num_prompt)
        self._metrics.count_text(text.outcome, text.num_prompt)
        self._on_over()


def _carry(text: ActiveText, rows: torch.Tensor, tokens: list[int], past: int, session: Session) -> torch.Tensor:
    """On the link's thread, while the engine leaves the text alone."""
    if not text.cache_id:
        text.cache_id = session.crossing.new_cache_id()
    return session.carry(Passage(rows, tokens, past, text.cache_id, text.document))


def _release(cache_id: int, session: Session) -> None:
    session.crossing.cache_release(cache_id)


def _set_free(link: Link) -> None:
    link.is_busy = False
