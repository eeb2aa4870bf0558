"""The victims' prompts: from a file of the user's, else the facts about users that the demonstration ships.

A line of JSON has a prompt as `query`, which is never cut, or a document as `text`, of which the opening sentences are
taken.

Refused: a file that cannot be read or is of another form, and one with too few prompts of the wanted length.

Shapes: T tokens of one prompt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditor.arrays import Integers
from deploy.study.settings import Recipe
from splitwire.errors import SettingsError

SHIPPED = Path(__file__).resolve().parents[1] / "demo" / "data" / "private.jsonl"
_QUERY, _TEXT = "query", "text"
_MARK = "the prompt"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts [T] in an order that the seed draws. Each is a document."""

    name: str
    digest: str
    tokens: tuple[Integers, ...]
    handover: Integers
    """Tokens that end a user's turn and begin the model's, by its chat template; none where it has none."""


def digest_of(file: Path) -> str:
    """SHA-256 hex of the file; SettingsError when it cannot be read."""
    return hashlib.sha256(_content(file)).hexdigest()


def load_prompts(file: Path, tokenizer: Any, recipe: Recipe, wanted: int) -> Prompts:
    """At least `wanted` prompts between the recipe's lengths, each once."""
    found: dict[bytes, Integers] = {}
    for field, text in _entries(file):
        ids = _tokens(text, tokenizer) if field == _QUERY else _opening(text, tokenizer, recipe.most_tokens)
        if recipe.fewest_tokens <= len(ids) <= recipe.most_tokens:
            found[ids.tobytes()] = ids
    if len(found) < wanted:
        raise SettingsError(
            f"{file} has {len(found)} different prompts of {recipe.fewest_tokens} to {recipe.most_tokens} tokens, "
            f"{wanted} are needed",
            remedy="name another file with --prompts, or change recipe.fewest_tokens and recipe.most_tokens",
        )
    prompts = list(found.values())
    order = np.random.default_rng(recipe.seed).permutation(len(prompts))
    drawn = tuple(prompts[number] for number in order)
    return Prompts(file.name, digest_of(file), drawn, _handover(tokenizer))


def _handover(tokenizer: Any) -> Integers:
    if not tokenizer.chat_template:
        return np.zeros(0, dtype=np.int64)
    turn = [{"role": "user", "content": _MARK}]
    shown: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return _tokens(shown.rpartition(_MARK)[2], tokenizer)


def _opening(text: str, tokenizer: Any, most: int) -> Integers:
    """The tokens of as many sentences from the start as there is room for; none when the first is too long."""
    opening = np.zeros(0, dtype=np.int64)
    for end in [*(found.start() for found in _SENTENCE_END.finditer(text)), len(text)]:
        tokens = _tokens(text[:end], tokenizer)
        if len(tokens) > most:
            break
        opening = tokens
    return opening


def _tokens(text: str, tokenizer: Any) -> Integers:
    return np.array(tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)


def _entries(file: Path) -> Iterator[tuple[str, str]]:
    """Field and content of every line."""
    for number, line in enumerate(_content(file).decode("utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        told = [(name, entry[name]) for name in (_QUERY, _TEXT) if name in entry] if isinstance(entry, dict) else []
        if not told or not isinstance(told[0][1], str):
            remedy = 'write {"query": "..."} or {"text": "..."}'
            raise SettingsError(f"line {number} of {file} has no prompt", remedy=remedy)
        yield told[0]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}", remedy="name it with --prompts") from None
