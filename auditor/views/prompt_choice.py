"""Which captured texts are attacked, and what the scorer has to know of the choice.

Texts of one prompt are of one document, however often it was sent. Of the texts that the public model can read every
document comes once before any comes twice, sampled evenly, as many as the plan allows; where an attack is granted known
plaintext, the texts of train documents are set apart for it.

Shapes: T positions of one text.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from auditor.arrays import Integers
from auditor.evidence.splits import TRAIN, split_documents
from auditor.plan import Plan
from auditor.public_model import PublicModel
from auditor.public_text import OVERLAP_TOKENS
from auditor.views.base import NotMeasurableError
from auditor.views.text_keys import KeyedText, TextKey
from auditor.views.text_rows import cut_to

_FEWEST_TO_GRANT = 3
"""Documents, one for each split."""


def named(texts: Sequence[KeyedText]) -> list[KeyedText]:
    """Every text with a document: one of which the truth names none is named by its prompt. Texts of one prompt are of
    one document however often it was sent: they say no more of other texts than one of them.
    """
    texts_named, by_content = [], dict[str, str]()
    for text in texts:
        content = hashlib.sha256(_content(text.key).tobytes()).hexdigest()
        document = by_content.setdefault(content, text.key.document or f"prompt {content}")
        texts_named.append(replace(text, key=replace(text.key, document=document)))
    return texts_named


def _content(key: TextKey) -> Integers:
    """The prompt; where that is short enough for an accident, the whole text."""
    return key.tokens[: key.num_prompt] if key.num_prompt >= OVERLAP_TOKENS else key.tokens


def within_window(texts: Sequence[KeyedText], model: PublicModel, problems: Counter[str]) -> list[KeyedText]:
    """The texts that the public model can read; no trusted node sends more positions than its model has."""
    longest = max((text.pieces.num_positions for text in texts), default=0)
    most = int(getattr(model.head.config, "max_position_embeddings", 0)) or longest
    kept = [text for text in texts if text.pieces.num_positions <= most]
    if len(kept) < len(texts):
        problems[f"texts are longer than the {most} positions of the public model"] += len(texts) - len(kept)
    return kept


def count_untold(texts: Sequence[KeyedText], problems: Counter[str]) -> None:
    """Positions that crossed and whose token the truth does not tell would be left out of every number."""
    if untold := sum(int((text.key.tokens[:-1] < 0).sum()) for text in texts):
        problems["positions whose token the truth does not tell"] += untold


def granted(texts: Sequence[KeyedText], plan: Plan) -> tuple[list[KeyedText], list[KeyedText]]:
    """Texts of train documents, declared known plaintext, and the others."""
    names = list(dict.fromkeys(text.key.document for text in texts))
    if len(names) < _FEWEST_TO_GRANT:
        raise NotMeasurableError(
            f"the attack needs known plaintext, and {len(names)} documents are too few to grant any of them"
        )
    split = dict(zip(names, split_documents(names, plan.split), strict=True))
    known = [text for text in texts if split[text.key.document] == TRAIN]
    return known, [text for text in texts if split[text.key.document] != TRAIN]


def chosen_texts(texts: Sequence[KeyedText], most: int) -> list[KeyedText]:
    """At most so many texts, every document once before any comes twice; documents are sampled evenly."""
    seen: Counter[str] = Counter()
    rounds: list[list[KeyedText]] = []
    for text in texts:
        turn = seen[text.key.document]
        seen[text.key.document] += 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(text)
    chosen: list[KeyedText] = []
    for texts_of_turn in rounds:
        chosen += evenly(texts_of_turn, most - len(chosen))
    return chosen


def evenly(texts: Sequence[KeyedText], most: int) -> list[KeyedText]:
    """At most so many of the texts, evenly chosen."""
    if not texts or most < 1:
        return []
    places = np.unique(np.linspace(0, len(texts) - 1, min(most, len(texts))).round().astype(int))
    return [texts[place] for place in places]


def cut(texts: Sequence[KeyedText], most: int) -> list[KeyedText]:
    """The first positions of each text; all of them for 0."""
    if not most:
        return list(texts)
    return [
        KeyedText(
            cut_to(text.pieces, most),
            first_tokens(text.key, most + 1),
        )
        for text in texts
    ]


def first_tokens(key: TextKey, most: int) -> TextKey:
    """The answers of a text that was cut; where the cut is within the prompt, all of it is prompt."""
    tokens = key.tokens[:most]
    return replace(key, tokens=tokens, num_prompt=min(key.num_prompt, len(tokens)))
