"""One text while it is generated: what has crossed, what comes next, and what its reader is told.

Events go to the reader in order: pieces of text, then how it ended or why it failed. Nothing comes after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tln.serve.layers import LocalCaches
from tln.serve.links import Link
from tln.serve.prompts import TextRequest
from tln.serve.sampling import Choice, Sampler
from tln.serve.text import AnswerText, Piece

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Ended:
    """The text is complete; `num_tokens` were generated, an end token included."""

    reason: FinishReason
    num_tokens: int


@dataclass(frozen=True)
class Failed:
    """The text cannot go on."""

    error: BaseException


Event = Piece | Ended | Failed
Reader = Callable[[Event], None]
"""Is called on the engine's thread; must be quick and must not raise."""


class ActiveText:
    """State of one text. Only the engine's thread uses it; `link` and `caches` are there once it has begun."""

    link: Link
    caches: LocalCaches

    def __init__(self, request: TextRequest, reader: Reader, tokenizer: Any, ends: frozenset[int]) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.arrived_at = time.monotonic()
        self.num_sent = 0
        self.sent_at = 0.0
        self.is_at_first_part = True
        self.cache_id = 0
        self.has_remote_cache = False
        self.document: int | None = None
        self.returned: torch.Tensor | None = None
        self.is_under_way = False
        self.was_tried = False
        self.outcome = ""
        self._reader = reader
        self._ends = ends
        self._sampler = Sampler(request.sampling)
        self._answer = AnswerText(tokenizer, request.prompt, request.stops)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_new(self) -> int:
        """Tokens that were generated."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_due(self) -> int:
        """Tokens that have not been sent."""
        return len(self.tokens) - self.num_sent

    @property
    def has_ended(self) -> bool:
        """Whether its reader will hear nothing more."""
        return bool(self.outcome)

    def begin(self, link: Link, caches: LocalCaches) -> None:
        """Starts on a link, also for the second time."""
        self.link, self.caches = link, caches
        self.num_sent = self.cache_id = 0
        self.has_remote_cache = False

    def next_tokens(self, most: int) -> list[int]:
        """The tokens that are due, at most so many."""
        return self.tokens[self.num_sent : self.num_sent + most]

    def note_sent(self, count: int) -> None:
        """So many tokens are on their way."""
        self.is_at_first_part = self.num_sent == 0
        self.num_sent += count
        self.is_under_way, self.sent_at = True, time.monotonic()

    def take_returned(self) -> torch.Tensor:
        """The rows [1, T, H] that came back."""
        assert self.returned is not None  # noqa: S101 - the engine takes those of texts that have some
        returned, self.returned = self.returned, None
        return returned

    def choose(self, logits: torch.Tensor) -> Choice:
        """The next token from the logits [V] after the last one, told to the reader. The text may have ended then."""
        choice = self._sampler.choose(logits)
        self.tokens.append(choice.token)
        if choice.token in self._ends:
            self._finish(self._answer.end(), "stop")
            return choice
        piece = self._answer.push(choice)
        if self._answer.has_stopped:
            self._finish(piece, "stop")
        elif self.num_new == self.request.max_tokens:
            rest = self._answer.end()
            whole = Piece(piece.text + rest.text, piece.tokens + rest.tokens)
            self._finish(whole, "stop" if self._answer.has_stopped else "length")
        else:
            self._tell(piece)
        return choice

    def fail(self, error: BaseException) -> None:
        """Tells the reader, unless the text has ended."""
        if not self.has_ended:
            self.outcome = "failed"
            self._reader(Failed(error))

    def let_go(self) -> None:
        """Frees its caches now: who reads the answer may hold the text for longer."""
        del self.caches
        self.returned = None

    def cancel(self) -> None:
        """Ends it without a word."""
        self.outcome = "cancelled"

    def _finish(self, piece: Piece, reason: FinishReason) -> None:
        self._tell(piece)
        self.outcome = reason
        self._reader(Ended(reason, self.num_new))

    def _tell(self, piece: Piece) -> None:
        if piece.text or (piece.tokens and self.request.sampling.num_logprobs is not None):
            self._reader(piece)
