"""Whole texts must come back from the sealed truth as they were told, and never half understood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from splitwire.bundles import TextTruth, TruthWriter, read_truth
from splitwire.errors import SealError


def text(*tokens: int, document: int = 0, num_prompt: int = 1) -> TextTruth:
    return TextTruth(document, num_prompt, np.array(tokens, dtype=np.int32))


def test_a_text_is_read_back_beside_the_other_records(tmp_path: Path, keys: Path) -> None:
    with TruthWriter(tmp_path / "t", keys / "audit.pub", {"vocabulary_size": 9}) as writer:
        writer.add_documents([{"id": "text-1", "member": False}])
        writer.add_text(text(5, 6, 7, num_prompt=2))
        writer.add_text(text(8))
    truth = read_truth(tmp_path / "t", keys / "audit.key")
    assert truth.is_complete
    assert [(one.document, one.num_prompt, one.tokens.tolist()) for one in truth.texts] == [
        (0, 2, [5, 6, 7]),
        (0, 1, [8]),
    ]
    assert truth.documents[0]["id"] == "text-1"


@pytest.mark.parametrize(
    ("document", "num_prompt", "tokens"),
    [
        (-1, 1, np.array([1], dtype=np.int32)),
        (0, 0, np.array([1], dtype=np.int32)),
        (0, 2, np.array([1], dtype=np.int32)),
        (0, 1, np.array([1], dtype=np.int64)),
        (0, 1, np.array([[1]], dtype=np.int32)),
    ],
)
def test_what_is_no_text_is_refused_and_shows_no_token(document: int, num_prompt: int, tokens: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"document|tokens"):
        TextTruth(document, num_prompt, tokens)


def test_a_malformed_text_does_not_open(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextTruth, "head", lambda _: {"document": 0})
    with TruthWriter(tmp_path / "t", keys / "audit.pub") as writer:
        writer.add_text(text(1, 2))
    with pytest.raises(SealError, match="no truth record"):
        read_truth(tmp_path / "t", keys / "audit.key")
