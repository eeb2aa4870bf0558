"""A text that crossed more than once counts once."""

from __future__ import annotations

import numpy as np

from auditor.views.sequences import Piece, TextPieces
from auditor.views.text_keys import KeyedText, TextKey, _each_once


def _text(session: str, tokens: list[int], num_prompt: int, document: str = "0/text-1") -> KeyedText:
    pieces = TextPieces(session, (Piece(1, 0, 0, len(tokens), len(tokens)),), "fp32")
    return KeyedText(pieces, TextKey(np.array([*tokens, -1]), document, num_prompt))


def _told(*texts: KeyedText) -> list[tuple[str, int, int]]:
    return [(text.pieces.session, text.pieces.num_positions, text.key.num_prompt) for text in _each_once(texts)]


def test_a_session_that_takes_up_a_lost_one_sends_the_same_text() -> None:
    """The longer one is kept, with the prompt of the one whose answer was seen to begin."""
    lost, anew = _text("a", [5, 6, 7, 8], 2), _text("b", [5, 6, 7, 8, 9], 4)
    assert _told(lost, anew) == [("b", 5, 2)]
    assert _told(anew, lost) == [("b", 5, 2)]


def test_epochs_are_one_text_and_different_ones_are_not() -> None:
    """Blocks of one document, and beams that part, are several."""
    assert _told(_text("a", [5, 6], 2), _text("a", [5, 6], 2)) == [("a", 2, 2)]
    assert len(_told(_text("a", [5, 6, 7], 2), _text("a", [5, 6, 8], 2), _text("a", [1, 2], 2))) == 3


def test_without_a_document_only_another_session_sends_again() -> None:
    """One session may well send the beginning of another text of its own."""
    short, long = _text("a", [5, 6], 2, ""), _text("a", [5, 6, 7], 2, "")
    assert len(_told(short, long)) == 2
    assert len(_told(_text("b", [5, 6], 2, ""), long)) == 1
