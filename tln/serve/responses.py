"""Answers in the forms of the API: chat and text, whole and in pieces.

Log-probabilities below LOWEST, minus infinity among them, are shown as LOWEST, since JSON has no infinity.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tln.serve.text import ScoredToken, token_bytes, token_text

LOWEST = -9999.0
DONE = b"data: [DONE]\n\n"


@dataclass
class ChoiceText:
    """What is known of one choice."""

    text: str = ""
    tokens: list[ScoredToken] = field(default_factory=list)
    finish_reason: str | None = None
    num_tokens: int = 0


class Form(ABC):
    """The answers to one request; `num_logprobs` is None when they carry no log-probabilities."""

    prefix: str
    whole_object: str
    piece_object: str

    def __init__(self, model: str, fingerprint: str, tokenizer: Any, num_logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = num_logprobs is not None
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def whole(self, choices: Sequence[ChoiceText], num_prompt: int) -> dict[str, Any]:
        """The answer as one body."""
        shown = [
            {
                "index": index,
                **self._content(choice.text),
                "logprobs": self._logprobs(choice.tokens),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        used = usage(num_prompt, sum(choice.num_tokens for choice in choices))
        return {**self._head, "object": self.whole_object, "choices": shown, "usage": used}

    def begin(self, index: int) -> list[dict[str, Any]]:  # noqa: ARG002 - the chat form has one
        """Pieces before any text of a choice."""
        return []

    def piece(self, index: int, text: str, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """A piece of a choice's text."""
        return self._chunk(index, self._added(text), self._logprobs(tokens), None)

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """The last piece of a choice."""
        return self._chunk(index, self._added(""), None, reason)

    def used(self, num_prompt: int, num_new: int) -> dict[str, Any]:
        """The piece that tells what a stream used."""
        return {**self._head, "object": self.piece_object, "choices": [], "usage": usage(num_prompt, num_new)}

    def _chunk(self, index: int, content: dict[str, Any], logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "object": self.piece_object, "choices": [choice]}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Any:
        return self._scores(tokens) if self._has_logprobs else None

    @abstractmethod
    def _content(self, text: str) -> dict[str, Any]:
        """The whole text of a choice."""

    @abstractmethod
    def _added(self, text: str) -> dict[str, Any]:
        """Text that a piece adds."""

    @abstractmethod
    def _scores(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """Log-probabilities of tokens."""


class ChatForm(Form):
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Says whose turn it is."""
        return [self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None, None)]

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _added(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _scores(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        content = []
        for token in tokens:
            top = [self._score(other, logprob) for other, logprob in token.choice.top]
            content.append({**self._score(token.choice.token, token.choice.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _score(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(self._tokenizer, token),
            "logprob": max(logprob, LOWEST),
            "bytes": token_bytes(self._tokenizer, token),
        }


class TextForm(Form):
    """/v1/completions."""

    prefix = "cmpl"
    whole_object = piece_object = "text_completion"

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _added(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _scores(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        choices = [token.choice for token in tokens]
        return {
            "tokens": [self._name(choice.token) for choice in choices],
            "token_logprobs": [max(choice.logprob, LOWEST) for choice in choices],
            "top_logprobs": [
                {self._name(other): max(logprob, LOWEST) for other, logprob in choice.top} for choice in choices
            ],
            "text_offset": [token.offset for token in tokens],
        }

    def _name(self, token: int) -> str:
        """How a token reads; one that is a part of a character by its bytes, as that API writes them."""
        text = token_text(self._tokenizer, token)
        parts = token_bytes(self._tokenizer, token)
        if "\ufffd" in text and parts is not None:
            return "bytes:" + "".join(f"\\x{part:02x}" for part in parts)
        return text


def usage(num_prompt: int, num_new: int) -> dict[str, int]:
    """Tokens of prompts and answers."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n\n"
