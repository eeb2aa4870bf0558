"""Text in, blocks out; who is held out is random by document."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from splitwire.errors import SettingsError
from tln.keys import RunKey
from tln.training.corpus import (
    CorpusSettings,
    Document,
    blocks_digest,
    check_corpus,
    make_blocks,
    read_documents,
    split_members,
)

MARKER = "zebra-marker-4711"


def _encode(text: str) -> list[int]:
    return list(text.encode("utf-8"))


def _documents(num: int, length: int = 40) -> list[Document]:
    return [Document(f"d{index}", chr(97 + index % 26) * length) for index in range(num)]


def test_a_folder_is_one_document_a_file(tmp_path: Path) -> None:
    """Sorted by path, named by path without the suffix, other files left alone."""
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "ignored.md"):
        (tmp_path / name).write_text(name)
    assert [document.id for document in read_documents(tmp_path)] == ["a", "b", "sub/c"]
    assert len(read_documents(tmp_path, max_documents=2)) == 2


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_what_may_never_end_is_not_read(tmp_path: Path, name: str) -> None:
    """A pipe, for instance; a device of zeros would fill the memory."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(SettingsError, match="neither a file nor a folder"):
        read_documents(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"), [("x.jsonl", '{"id": "a", "text": "some"}\n{"id": "b", "text": " "}'), ("x.txt", "\n")]
)
def test_an_empty_document_is_refused(tmp_path: Path, name: str, content: str) -> None:
    """Told by its number; nothing of it could be trained on, and its membership would mean nothing."""
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=r"document [12] in reading order is empty"):
        read_documents(tmp_path / name)


def test_json_lines_are_one_document_a_line(tmp_path: Path) -> None:
    """Ids may be numbers; empty lines are skipped."""
    file = tmp_path / "x.jsonl"
    file.write_text('{"id": 7, "text": "one"}\n\n{"id": "b", "text": "two", "more": 1}\n')
    assert read_documents(file) == [Document("7", "one"), Document("b", "two")]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("x.jsonl", f'{{"id": "a", "text": "{MARKER}"}}\n{MARKER}', "line 2 is not JSON"),
        ("x.jsonl", f'{{"text": "{MARKER}"}}', "line 1 has no id"),
        ("x.jsonl", f'{{"id": "a", "text": "{MARKER}"}}\n' * 2, "same id"),
        ("x.jsonl", "", "no document"),
        ("x.jsonl", f'{{"id": "", "text": "{MARKER}"}}', "line 1 has no id"),
        ("x.jsonl", f'{{"id": ["{MARKER}"], "text": "{MARKER}"}}', "line 1 has no id"),
        ("x.jsonl", f'{{"id": {{}}, "text": "{MARKER}"}}', "line 1 has no id"),
        ("x.jsonl", f'{{"id": "a", "text": "{MARKER} \\ud800"}}', "line 1 holds half of a surrogate pair"),
        ("x.jsonl", f'{{"id": "a\\udfff", "text": "{MARKER}"}}', "line 1 holds half of a surrogate pair"),
        ("x.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("x.jsonl", f'{{"id": {"9" * 5000}, "text": "{MARKER}"}}', "line 1 is not JSON"),
    ],
)
def test_bad_text_is_named_by_line_and_never_shown(tmp_path: Path, name: str, content: str, named: str) -> None:
    """Errors carry file and line, never content."""
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=named) as caught:
        read_documents(tmp_path / name)
    assert MARKER not in str(caught.value)


def test_only_a_line_feed_ends_a_json_line(tmp_path: Path) -> None:
    """JSON may hold the other line ends of Unicode as they are; the number 0 is an id."""
    file = tmp_path / "x.jsonl"
    file.write_text('{"id": 0, "text": "one\u2028two\u0085three"}\r\n', encoding="utf-8")
    assert read_documents(file) == [Document("0", "one\u2028two\u0085three")]


def test_a_folder_that_is_named_like_a_text_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    (tmp_path / "a.txt" / "b.txt").write_text("b")
    assert [document.id for document in read_documents(tmp_path)] == ["a.txt/b"]


def test_missing_and_unreadable_texts(tmp_path: Path) -> None:
    """A path that is not there, and bytes that are not UTF-8."""
    with pytest.raises(SettingsError, match="cannot be read"):
        read_documents(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_documents(tmp_path / "latin.txt")


def test_blocks_never_span_documents() -> None:
    """Each block holds one document's tokens and their next tokens; remainders are counted."""
    blocks = make_blocks(_documents(3), _encode, CorpusSettings(block_tokens=8))
    assert blocks.tokens.shape == (12, 8)
    assert all(len(set(row)) == 1 for row in blocks.tokens.tolist())
    assert torch.equal(blocks.tokens[:, 0] - 97, blocks.documents)
    assert torch.equal(blocks.tokens[:, 1:], blocks.labels[:, :-1])
    assert blocks.num_left_out == 3 * 4


def test_blocks_a_document_can_be_limited() -> None:
    """A long document does not outweigh the others; what is left out is counted."""
    blocks = make_blocks(_documents(2), _encode, CorpusSettings(block_tokens=8, max_blocks_per_document=1))
    assert len(blocks) == 2
    assert blocks.num_left_out == 2 * 31


def test_a_document_without_a_block_is_no_document() -> None:
    """It neither trains nor is held out, so the membership table does not name it."""
    documents = [Document("short", "ab"), *_documents(2)]
    blocks = make_blocks(documents, _encode, CorpusSettings(block_tokens=8))
    assert blocks.ids == ("d0", "d1")
    assert set(blocks.documents.tolist()) == {0, 1}
    assert blocks.num_left_out == 2 + 2 * 4


def test_documents_too_short_for_a_block() -> None:
    """The message names the length a block takes."""
    with pytest.raises(SettingsError, match="65 tokens"):
        make_blocks(_documents(3), _encode, CorpusSettings(block_tokens=64))


def test_members_are_split_by_document_and_at_random() -> None:
    """A fifth of the documents, whole ones, and others under another key."""
    blocks = make_blocks(_documents(20), _encode, CorpusSettings(block_tokens=8))
    held = set()
    for secret in (b"a" * 32, b"b" * 32):
        split = split_members(blocks, 0.2, RunKey(secret).stream("corpus", 0, "membership"))
        assert (~split.is_member).sum() == 4
        assert sorted([*split.train.tolist(), *split.held_out.tolist()]) == list(range(len(blocks)))
        assert not set(blocks.documents[split.train].tolist()) & set(blocks.documents[split.held_out].tolist())
        held.add(tuple((~split.is_member).nonzero().flatten().tolist()))
    assert len(held) == 2


@pytest.mark.parametrize("ratio", [0.01, 0.99])
def test_both_sides_have_a_document(ratio: float) -> None:
    """Rounding never empties a side."""
    blocks = make_blocks(_documents(3), _encode, CorpusSettings(block_tokens=8))
    split = split_members(blocks, ratio, RunKey.generate().stream("corpus", 0, "membership"))
    assert len(split.train)
    assert len(split.held_out)


def test_one_document_cannot_be_split() -> None:
    """Membership needs documents to hold out."""
    blocks = make_blocks(_documents(1), _encode, CorpusSettings(block_tokens=8))
    with pytest.raises(SettingsError, match="too few"):
        split_members(blocks, 0.2, RunKey.generate().stream("corpus", 0, "membership"))


def test_the_digest_sees_every_part() -> None:
    """Another text, other blocks or other ids are another corpus."""
    settings = CorpusSettings(block_tokens=8)
    first = make_blocks(_documents(3), _encode, settings)
    renamed = make_blocks([Document("x" + d.id, d.text) for d in _documents(3)], _encode, settings)
    longer = make_blocks(_documents(4), _encode, settings)
    assert len({blocks_digest(blocks) for blocks in (first, renamed, longer)}) == 3


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (CorpusSettings(), "path is empty"),
        (CorpusSettings(path="x", block_tokens=1), "block_tokens is 1"),
        (CorpusSettings(path="x", holdout_ratio=1.0), "holdout_ratio is 1.0"),
        (CorpusSettings(path="x", max_documents=-1), "max_documents is -1"),
    ],
)
def test_unusable_settings_are_named(settings: CorpusSettings, named: str) -> None:
    """Field, value and the accepted range."""
    with pytest.raises(SettingsError, match=named):
        check_corpus(settings)
