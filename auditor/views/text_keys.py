"""What captured texts really are, for the scorer alone: tokens, document, whether real, where the prompt ends.

The truth of the frames tells the token of each position, and counts only where it carries the digest of the very frame.
The sealed texts of a generation (`TextTruth`) tell what no row does: the last token of an answer, and the end of the
prompt. What follows the end of an answer in a batch is padding, and is cut.

One text may cross more than once: a session that takes up the work of one that was lost sends all of it again, and
training comes to a document once an epoch. It counts once, the longer one.

Shapes: T positions of one text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auditor.arrays import Integers
from auditor.evidence.sources import FrameSource, TruthSource
from auditor.views.sequences import TextPieces
from auditor.views.text_rows import cut_to, frames_of
from splitwire.v1 import channels_pb2

UNKNOWN = -1
"""A token that the truth does not tell."""


@dataclass(frozen=True, eq=False)
class TextKey:
    """Token ids [T + 1] (the last follows the text; UNKNOWN where nothing does or nobody tells), the document (empty
    where the truth names none), and where the prompt ends.
    """

    tokens: Integers
    document: str
    num_prompt: int
    is_real: bool = True


@dataclass(frozen=True, eq=False)
class KeyedText:
    """The pieces of a text and its answers."""

    pieces: TextPieces
    key: TextKey


def keyed_texts(
    sources: Sequence[FrameSource],
    truths: Sequence[TruthSource],
    texts: Sequence[TextPieces],
    problems: Counter[str],
) -> list[KeyedText]:
    """The real texts whose truth is known whole, each once. `problems` counts those whose truth is not."""
    digests = _digests(sources, texts)
    found = []
    for text in texts:
        keyed = _keyed(text, truths, digests, problems)
        if keyed is not None and keyed.key.is_real:
            found.append(keyed)
    return _each_once(found)


def _digests(sources: Sequence[FrameSource], texts: Sequence[TextPieces]) -> dict[tuple[str, int], str]:
    """The digest of every FORWARD frame of these sessions."""
    digests: dict[tuple[str, int], str] = {}
    for frame in frames_of(sources, channels_pb2.HOP_FORWARD, {text.session for text in texts}):
        digests.setdefault((frame.session_hash, int(frame.header.step)), frame.message_digest)
    return digests


def _keyed(
    text: TextPieces,
    truths: Sequence[TruthSource],
    digests: dict[tuple[str, int], str],
    problems: Counter[str],
) -> KeyedText | None:
    steps = [(text.session, piece.step) for piece in text.pieces]
    number = next((n for n, truth in enumerate(truths) if all(step in truth.records for step in steps)), None)
    if number is None:
        problems["texts have no truth"] += 1
        return None
    records = [truths[number].records[step] for step in steps]
    if any(record.forward_digest != digests.get(step) for record, step in zip(records, steps, strict=True)):
        problems["texts have other bytes than those of the truth"] += 1
        return None
    if any(
        record.token.shape[1] < piece.first + piece.count for record, piece in zip(records, text.pieces, strict=True)
    ):
        problems["texts have another shape than that of the truth"] += 1
        return None
    return _with_sealed(text, _from_rows(text, records, truths[number], number), records, truths[number])


def _from_rows(text: TextPieces, records: Sequence[Any], truth: TruthSource, number: int) -> TextKey:
    """What the truth of the frames says."""
    columns = {name: _column(text, records, name) for name in ("token", "label", "real", "document")}
    place = _document(columns["document"])
    name = str(truth.documents[place]["id"]) if 0 <= place < len(truth.documents) else ""
    if name and records[0].phase == "generate":
        name = f"{number}/{name}"  # generated texts are numbered anew in every run
    last = int(columns["label"][-1])
    tokens = np.append(columns["token"].astype(np.int64), last if last >= 0 else UNKNOWN)
    return TextKey(tokens, name, text.num_prompt, bool(columns["real"].any()))


def _with_sealed(text: TextPieces, key: TextKey, records: Sequence[Any], truth: TruthSource) -> KeyedText:
    """The same with what the sealed text of this document tells, where there is one."""
    place = _document(_column(text, records, "document"))
    for sealed in getattr(truth, "texts", ()):
        num = min(len(sealed.tokens), text.num_positions)
        if sealed.document == place and bool((sealed.tokens[:num] == key.tokens[:num]).all()):
            last = int(sealed.tokens[num]) if len(sealed.tokens) > num else UNKNOWN
            tokens = np.append(key.tokens[:num], last)
            told = replace(key, tokens=tokens, num_prompt=min(sealed.num_prompt, len(tokens)))
            return KeyedText(cut_to(text, num), told)
    return KeyedText(text, key)


def _column(text: TextPieces, records: Sequence[Any], name: str) -> Any:
    parts = [
        getattr(record, name)[piece.sequence, piece.first : piece.first + piece.count]
        for record, piece in zip(records, text.pieces, strict=True)
    ]
    return np.concatenate(parts)


def _document(documents: Any) -> int:
    """The document of most positions; -1 where there is none."""
    known = documents[documents >= 0]
    return int(np.bincount(known).argmax()) if len(known) else -1


def _each_once(texts: Sequence[KeyedText]) -> list[KeyedText]:
    """Without texts that are the beginning of another one of their document; that one keeps the shorter prompt."""
    by_start: dict[tuple[str, bytes], list[KeyedText]] = defaultdict(list)
    for text in sorted(texts, key=lambda text: -text.pieces.num_positions):
        start = (text.key.document, text.key.tokens[:1].tobytes())
        kept = by_start[start]
        for place, longer in enumerate(kept):
            if _begins(text, longer):
                num_prompt = min(text.key.num_prompt, longer.key.num_prompt)
                kept[place] = replace(longer, key=replace(longer.key, num_prompt=num_prompt))
                break
        else:
            kept.append(text)
    order = {id(text.pieces): number for number, text in enumerate(texts)}
    return sorted(_all(by_start), key=lambda text: order[id(text.pieces)])


def _all(groups: dict[tuple[str, bytes], list[KeyedText]]) -> Iterator[KeyedText]:
    for group in groups.values():
        yield from group


def _begins(text: KeyedText, longer: KeyedText) -> bool:
    """Whether the positions of one text are the first ones of another. Without a document: in another session only."""
    num = text.pieces.num_positions
    is_same = bool((text.key.tokens[:num] == longer.key.tokens[:num]).all())
    return is_same and (bool(text.key.document) or text.pieces.session != longer.pieces.session)
