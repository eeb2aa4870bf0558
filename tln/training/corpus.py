"""Private and public text: documents, blocks of tokens, and who is held out.

A text is a folder of .txt files (one document each), one .txt file (one document), a .jsonl file of objects with `id`
and `text`, or a folder that `datasets` saved (dataset_folder.py). Blocks are block_tokens inputs with their next
tokens as labels; a block never spans documents, and the remainder of a document that fills no block is left out and
counted. Which documents are held out as non-members is random, by document, from the run key, so that membership is
randomised.

Refused: an empty text or document, a duplicate id, a document set too small to hold any out. Error texts name files,
lines and counts, never text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from splitwire.errors import SettingsError
from tln.keys import KeyStream
from tln.training.dataset_folder import is_dataset_folder, read_dataset

Encode = Callable[[str], Sequence[int]]

_MIN_DOCUMENTS = 2


@dataclass(frozen=True)
class CorpusSettings:
    """`path` is the private text, `public_path` text that anyone may know, for calibration only. 0 means no limit.

    `holdout_ratio` of the documents never take part in training.
    """

    path: str = ""
    """Private text: a text file, a JSONL file with id and text, a folder of text files, or one that datasets saved."""
    public_path: str = ""
    """Text that anyone may know, for calibration only; same forms."""
    block_tokens: int = 32
    """Tokens of one block. A block never spans two documents."""
    holdout_ratio: float = 0.2
    """Share of documents that take no part in training: the non-members."""
    max_documents: int = 0
    """Documents that are read; 0 for all."""
    max_blocks_per_document: int = 0
    """Blocks of one document that are used; 0 for all."""
    canary_prefix: str = ""
    """Documents whose id begins with this are canaries, to show that an audit of membership finds what it looks for;
    empty for none."""
    canary_repeats: int = 20
    """How often an epoch holds the blocks of a canary that trains."""
    public_blocks: int = 16
    """Blocks of public text that a calibration reads."""


@dataclass(frozen=True)
class Document:
    """One document. The text stays on the trusted node."""

    id: str
    text: str


@dataclass(frozen=True)
class Blocks:
    """Blocks with inputs and labels int64 [N, T]; `documents` int64 [N] indexes `ids`, each of which has a block.

    `num_left_out` counts tokens that are in no block.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    documents: torch.Tensor
    ids: tuple[str, ...]
    num_left_out: int

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Membership:
    """Which documents train: `is_member` bool [documents].

    `train` and `held_out` are the block numbers of each side.
    """

    is_member: torch.Tensor
    train: torch.Tensor
    held_out: torch.Tensor


def check_corpus(settings: CorpusSettings) -> None:
    """SettingsError for a missing path and numbers out of range."""
    if not settings.path:
        raise SettingsError("corpus.path is empty", remedy="name a folder of .txt files, a .txt file or a .jsonl file")
    if settings.block_tokens < 2:
        raise SettingsError(f"corpus.block_tokens is {settings.block_tokens}", remedy="use at least 2, such as 32")
    if not 0.0 < settings.holdout_ratio < 1.0:
        raise SettingsError(
            f"corpus.holdout_ratio is {settings.holdout_ratio}", remedy="use a fraction between 0 and 1, such as 0.2"
        )
    for name in ("max_documents", "max_blocks_per_document", "public_blocks"):
        if getattr(settings, name) < 0:
            raise SettingsError(f"corpus.{name} is {getattr(settings, name)}", remedy="use 0 (no limit) or a count")
    if settings.canary_repeats < 1:
        raise SettingsError(f"corpus.canary_repeats is {settings.canary_repeats}", remedy="use at least 1, such as 20")


def read_documents(path: Path, max_documents: int = 0) -> list[Document]:
    """The documents of a folder, a .txt or a .jsonl file, in a fixed order, at most `max_documents` (0: all)."""
    documents: list[Document] = []
    seen: set[str] = set()
    for document in _documents(path):
        if document.id in seen:
            raise SettingsError(f"{path}: two documents have the same id", remedy="give every document its own id")
        if not document.text.strip():
            raise SettingsError(
                f"{path}: document {len(documents) + 1} in reading order is empty", remedy="leave it out of the corpus"
            )
        seen.add(document.id)
        documents.append(document)
        if len(documents) == max_documents:
            break
    if not documents:
        raise SettingsError(f"{path} holds no document", remedy="name a folder of .txt files, a .txt or a .jsonl file")
    return documents


def make_blocks(documents: Sequence[Document], encode: Encode, settings: CorpusSettings) -> Blocks:
    """Blocks of every document that is long enough for one; the others are left out altogether.

    SettingsError when none is long enough.
    """
    size = settings.block_tokens + 1
    pieces: list[torch.Tensor] = []
    owners: list[int] = []
    ids: list[str] = []
    num_left_out = 0
    for document in documents:
        tokens = torch.tensor(list(encode(document.text)), dtype=torch.int64)
        count = len(tokens) // size
        kept = min(count, settings.max_blocks_per_document or count)
        num_left_out += len(tokens) - kept * size
        if kept:
            pieces.append(tokens[: kept * size].view(kept, size))
            owners.extend([len(ids)] * kept)
            ids.append(document.id)
    if not owners:
        raise SettingsError(
            f"no document has {size} tokens for one block", remedy="lower corpus.block_tokens or use longer documents"
        )
    blocks = torch.cat(pieces)
    return Blocks(blocks[:, :-1].clone(), blocks[:, 1:].clone(), torch.tensor(owners), tuple(ids), num_left_out)


def split_members(blocks: Blocks, holdout_ratio: float, stream: KeyStream) -> Membership:
    """Holds out a random share of the documents; at least one document on each side."""
    count = len(blocks.ids)
    if count < _MIN_DOCUMENTS:
        raise SettingsError(
            f"{count} document with a block is too few to hold any out by document",
            remedy="use a folder or a .jsonl file with several documents",
        )
    num_held_out = min(max(1, round(holdout_ratio * count)), count - 1)
    order = torch.from_numpy(stream.permutations(1, count)[0])
    is_member = torch.ones(count, dtype=torch.bool)
    is_member[order[:num_held_out]] = False
    members = is_member[blocks.documents]
    return Membership(is_member, members.nonzero().flatten(), (~members).nonzero().flatten())


def blocks_digest(blocks: Blocks) -> str:
    """SHA-256 hex over token blocks, their documents and ids. TLN only: a digest of a short text can be guessed."""
    digest = hashlib.sha256()
    for tensor in (blocks.tokens, blocks.labels, blocks.documents):
        digest.update(repr(tuple(tensor.shape)).encode("ascii"))
        digest.update(tensor.contiguous().numpy().tobytes())
    digest.update(json.dumps(blocks.ids).encode("utf-8"))
    return digest.hexdigest()


def _documents(path: Path) -> Iterator[Document]:
    if path.is_dir() and is_dataset_folder(path):
        for number, (name, text) in enumerate(read_dataset(path)):
            if not _is_unicode(name + text):
                raise SettingsError(f"{path} row {number} is no Unicode text", remedy="leave such rows out")
            yield Document(name, text)
    elif path.is_dir():
        for file in sorted(file for file in path.glob("**/*.txt") if file.is_file()):
            yield Document(file.relative_to(path).with_suffix("").as_posix(), _read(file))
    elif path.suffix == ".jsonl":
        yield from _jsonl(path)
    else:
        yield Document(path.stem, _read(path))


def _jsonl(path: Path) -> Iterator[Document]:
    for number, line in enumerate(_read(path).split("\n"), start=1):  # other line ends may stand inside a string
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise SettingsError(f"{path} line {number} is not JSON", remedy="write one JSON object a line") from None
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str) or not _is_id(entry.get("id")):
            raise SettingsError(f"{path} line {number} has no id and text", remedy='write {"id": "...", "text": "..."}')
        document = Document(str(entry["id"]), entry["text"])
        if not _is_unicode(document.id + document.text):
            raise SettingsError(
                f"{path} line {number} holds half of a surrogate pair", remedy="write the whole pair, or leave it out"
            )
        yield document


def _is_id(value: object) -> bool:
    return value != "" and isinstance(value, str | int | float)


def _is_unicode(text: str) -> bool:
    """JSON can escape single surrogates, which no encoding has."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _read(file: Path) -> str:
    if file.exists() and not file.is_file():  # a pipe or a device may never end
        raise SettingsError(f"text {file} is neither a file nor a folder", remedy="check corpus paths")
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"text {file} cannot be read: {error.strerror}", remedy="check corpus paths") from None
    except UnicodeDecodeError:
        raise SettingsError(f"text {file} is not UTF-8", remedy="convert it to UTF-8") from None
