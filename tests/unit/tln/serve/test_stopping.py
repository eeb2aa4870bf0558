"""A text ends before its first stop string, however it comes in pieces, and never shows part of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tln.serve.stopping import StopMatcher


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What is shown after each piece and at the end, and whether a stop string was found."""
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.has_stopped:
            return shown, True
    return [*shown, matcher.flush()], False


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "stopped"),
    [
        (["a", "b", "c"], [], ["a", "b", "c", ""], False),
        (["one st", "op two"], ["stop"], ["one ", ""], True),
        (["one st", "art"], ["stop"], ["one ", "start", ""], False),
        (["one sto"], ["stop"], ["one ", "sto"], False),
        (["abcdef"], ["ef", "cd"], ["ab"], True),
        (["aab", "aac"], ["aac"], ["aab", ""], True),
        (["\n", "\n"], ["\n\n"], ["", ""], True),
        (["xabcd"], ["abcd", "bc"], ["xa"], True),
    ],
)
def test_pieces(pieces: list[str], stops: list[str], shown: list[str], *, stopped: bool) -> None:
    """Held back, released, and cut."""
    assert run(pieces, stops) == (shown, stopped)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.integers(1, 4))
def test_the_text_is_that_before_the_first_stop_string(text: str, stops: list[str], size: int) -> None:
    """For every way to cut the text into pieces; a stop string is found if and only if the text has one."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    shown, stopped = run(pieces, stops)
    assert stopped == any(stop in text for stop in stops)
    if not stopped:
        assert "".join(shown) == text
        return
    assert text.startswith("".join(shown))
    assert all(stop not in "".join(shown) for stop in stops)
    seen = next(text[:end] for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops))
    assert "".join(shown) == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4))
def test_nothing_shown_is_taken_back(text: str, stop: str) -> None:
    """At no time does the shown text end in what turns out to be the beginning of the stop string."""
    matcher = StopMatcher([stop])
    shown = ""
    for character in text:
        shown += matcher.push(character)
        if matcher.has_stopped:
            break
    expected = text[: text.find(stop)] if stop in text else text
    assert (shown + matcher.flush()) == expected
