"""Text becomes visible in whole characters, and each token with the text that it is of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitwire.backbone import ModelSettings, load_tokenizer
from tln.serve.sampling import Choice
from tln.serve.text import AnswerText, Piece, token_bytes


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[[str], Path]) -> Any:
    """Every byte is a token."""
    return load_tokenizer(ModelSettings(source=str(tiny_model("llama"))))


def answer(tokenizer: Any, text: str, stops: tuple[str, ...] = ()) -> list[Piece]:
    """Pieces of an answer that reads `text`, as its tokens come."""
    tokens = tokenizer(text)["input_ids"]
    followed = AnswerText(tokenizer, tokenizer("a prompt")["input_ids"], stops)
    pieces = []
    for token in tokens:
        pieces.append(followed.push(Choice(token)))
        if followed.has_stopped:
            return pieces
    return [*pieces, followed.end()]


def test_a_character_of_several_tokens_comes_whole(tokenizer: Any) -> None:
    """Its tokens come with it."""
    pieces = answer(tokenizer, "a\u20acb")
    assert [piece.text for piece in pieces] == ["a", "", "", "\u20ac", "b", ""]
    assert [len(piece.tokens) for piece in pieces] == [1, 0, 0, 3, 1, 0]


def test_a_character_that_is_never_completed_is_shown_as_such(tokenizer: Any) -> None:
    """At the end, not before."""
    tokens = tokenizer("a\u20ac")["input_ids"][:-1]
    followed = AnswerText(tokenizer, [], ())
    shown = [followed.push(Choice(token)).text for token in tokens]
    assert shown == ["a", "", ""]
    assert "\ufffd" in followed.end().text


def test_tokens_are_shown_with_their_text(tokenizer: Any) -> None:
    """What is held back for a stop string holds back its tokens; those behind the stop are never shown."""
    pieces = answer(tokenizer, "abXcXYd", stops=("XY",))
    assert "".join(piece.text for piece in pieces) == "abXc"
    assert [token.offset for piece in pieces for token in piece.tokens] == [0, 1, 2, 3]
    assert [piece.text for piece in pieces] == ["a", "b", "", "Xc", "", ""]


def test_bytes_of_tokens(tokenizer: Any) -> None:
    """Also of those that are no character."""
    tokens = tokenizer("\u20ac")["input_ids"]
    assert [token_bytes(tokenizer, token) for token in tokens] == [[0xE2], [0x82], [0xAC]]
    assert token_bytes(tokenizer, tokenizer("a")["input_ids"][0]) == [ord("a")]
