"""From tokens to text as it becomes certain: whole characters only, up to the first stop string.

A token may be a part of a character, and how a token reads may depend on the one before it. So each step decodes the
last few tokens with and without the new one, and what the new one adds is its text; as long as that ends in the
replacement character the next token decides. The first tokens are read after the last ones of the prompt.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tln.serve.sampling import Choice
from tln.serve.stopping import StopMatcher

_CONTEXT_TOKENS = 6
_INCOMPLETE = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class ScoredToken:
    """A token of the answer with its place in the text, in characters."""

    choice: Choice
    offset: int


@dataclass(frozen=True)
class Piece:
    """Text that is certain, and the tokens of which all text is."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()


class Detokenizer:
    """Whole characters of one answer, token by token."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_CONTEXT_TOKENS:])
        self._known = 0
        self._read = len(self._tokens)

    def push(self, token: int) -> str:
        """What the token adds, unless that ends within a character."""
        self._tokens.append(token)
        added = self._added()
        if added.endswith(_INCOMPLETE):
            return ""
        if added:
            self._known, self._read = self._read, len(self._tokens)
        return added

    def flush(self) -> str:
        """What is left, with replacement characters where a character was never completed."""
        added, self._read = self._added(), len(self._tokens)
        return added

    def _added(self) -> str:
        before = self._decode(self._tokens[self._known : self._read])
        return self._decode(self._tokens[self._known :])[len(before) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class AnswerText:
    """The visible text of one answer, and with it the tokens whose text has become visible."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._matcher = StopMatcher(stops)
        self._num_read = 0
        self._num_shown = 0
        self._unread: list[ScoredToken] = []
        self._waiting: list[tuple[ScoredToken, int]] = []

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._matcher.has_stopped

    def push(self, choice: Choice) -> Piece:
        """What is certain after this token."""
        self._unread.append(ScoredToken(choice, self._num_read))
        return self._show(self._matcher.push(self._read(self._detokenizer.push(choice.token))))

    def end(self) -> Piece:
        """The rest. Nothing after a stop string; what was held back otherwise."""
        if self.has_stopped:
            return self._show("")
        text = self._matcher.push(self._read(self._detokenizer.flush(), is_last=True))
        return self._show(text if self.has_stopped else text + self._matcher.flush())

    def _read(self, text: str, *, is_last: bool = False) -> str:
        """Text that all tokens without one so far have become."""
        self._num_read += len(text)
        if text or is_last:
            self._waiting += [(token, self._num_read) for token in self._unread]
            self._unread.clear()
        return text

    def _show(self, text: str) -> Piece:
        self._num_shown += len(text)
        if self.has_stopped:
            tokens = [token for token, _ in self._waiting if token.offset < self._num_shown]
            self._waiting = []
        else:
            count = sum(end <= self._num_shown for _, end in self._waiting)
            tokens = [token for token, _ in self._waiting[:count]]
            del self._waiting[:count]
        return Piece(text, tuple(tokens))


def token_text(tokenizer: Any, token: int) -> str:
    """How a token alone reads."""
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text


def token_bytes(tokenizer: Any, token: int) -> list[int] | None:
    """The bytes of a token, also of one that is a part of a character; None where the vocabulary does not say."""
    text = token_text(tokenizer, token)
    if _INCOMPLETE not in text:
        return list(text.encode("utf-8"))
    stored: str = tokenizer.convert_ids_to_tokens(token)
    if single := _BYTE_TOKEN.fullmatch(stored):
        return [int(single[1], 16)]
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in stored):
        return [alphabet[character] for character in stored]
    return None


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins for bytes of byte-level vocabularies (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
