"""What names and numbers of a text were recovered, by a rule and without a model of entities.

An entity is a number (with its points, commas, colons and currency or per cent sign), or a run of capitalised words, of
which a word that begins a sentence counts only beside another capitalised one or when it comes capitalised elsewhere in
the text. Runs may contain `of`, `the`, `and` and `de` between capitalised words. Compared without case, as bags. The
rule misses names in lower case and takes headings for names: it ranks attacks on one text, and recognises no entities.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter

from auditor.text_metrics.tokens import Overlap, overlap

RULE = "numbers and runs of capitalised words"

_NUMBER = re.compile(r"[$\u20ac\u00a3]?\d(?:[\d.,:/-]*\d)?%?")
_WORD = re.compile(r"[^\W\d_][\w'-]*|[.!?\n]")
_INNER = frozenset({"of", "the", "and", "de"})
_ENDS = frozenset(".!?\n")
_PRONOUNS = frozenset({"I", "I'm", "I've", "I'll", "I'd"})


def entities(text: str) -> Counter[str]:
    """The entities of a text in lower case, with how often each comes."""
    found: Counter[str] = Counter(_NUMBER.findall(text))
    words = _WORD.findall(text)
    elsewhere = {word for before, word in itertools.pairwise(words) if before not in _ENDS and _is_name(word)}
    place = 0
    while place < len(words):
        if not _is_name(words[place]):
            place += 1
            continue
        starts_sentence = place == 0 or words[place - 1] in _ENDS
        run, place = _run(words, place)
        if len(run) > 1 or not starts_sentence or run[0] in elsewhere:
            found[" ".join(run).lower()] += 1
    return found


def entity_overlap(guessed: str, true: str) -> Overlap:
    """Entities that guess and truth have in common."""
    return overlap(entities(guessed), entities(true))


def _is_name(word: str) -> bool:
    return word[0].isupper() and word not in _PRONOUNS


def _run(words: list[str], place: int) -> tuple[list[str], int]:
    """The run of capitalised words from this place, and the place behind it."""
    end = place + 1
    while end < len(words):
        if _is_name(words[end]):
            end += 1
        elif words[end] in _INNER and end + 1 < len(words) and _is_name(words[end + 1]):
            end += 2
        else:
            break
    return words[place:end], end
