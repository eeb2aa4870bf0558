"""A bundle of all requests: every row joins with the text of its request, whatever else was in the batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from splitwire.bundles import TRUTH_FILE, open_bundle, read_truth, verify_bundle
from splitwire.errors import RecordingError
from splitwire.sealing import write_audit_keys
from splitwire.v1 import channels_pb2
from tln.mechanisms.clip_noise import ClipNoiseSettings
from tln.pipeline import FrameSettings
from tln.recording import RecordSettings

PROMPTS = [f"marker-{number} " * (number + 1) for number in range(4)]


@pytest.fixture
def recorded(start_node: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path) -> Any:
    """An endpoint that defends and records, and the folders of bundle and keys."""
    write_audit_keys(tmp_path / "keys")
    endpoint = serve(
        start_node(),
        {"prefill_positions": 16, "max_running": 3},
        record=RecordSettings(folder=str(tmp_path / "bundle"), audit_key=str(tmp_path / "keys" / "audit.pub")),
        frame=FrameSettings(mechanisms=("clip_noise",), clip_noise=ClipNoiseSettings(50.0, 0.05)),
    )
    endpoint.slow_down(0.01)
    return endpoint, tmp_path / "bundle", tmp_path / "keys" / "audit.key"


def test_every_row_joins_with_its_text(recorded: Any) -> None:
    """Several sessions, used one after another; every frame has its truth and every text prompt and answer."""
    endpoint, folder, key = recorded
    client = endpoint.client()

    def ask(prompt: str) -> Any:
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0)

    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(PROMPTS, pool.map(ask, PROMPTS), strict=True))
    endpoint.close()
    report = verify_bundle(folder)
    assert (report.is_complete, report.problems) == (True, [])
    truth = read_truth(folder / TRUTH_FILE, key)
    bundle = open_bundle(folder)
    assert 2 <= len(bundle.sessions()) <= 3
    texts = {text.document: text for text in truth.texts}
    assert len(texts) == len(truth.documents) == 4
    seen: dict[int, set[int]] = {document: set() for document in texts}
    for frame in bundle.frames(channels_pb2.HOP_FORWARD):
        record = truth.records[frame.session_hash, frame.header.step]
        assert record.forward_digest == frame.message_digest
        for document, order, token in zip(record.document[0], record.order[0], record.token[0], strict=True):
            assert texts[document].tokens[order] == token
            seen[int(document)].add(int(order))
    tokenizer = endpoint.parts.prompts.tokenizer
    for document, text in texts.items():
        assert seen[document] == set(range(len(text.tokens) - 1))
        prompt = tokenizer.decode(text.tokens[: text.num_prompt])
        answer = tokenizer.decode(text.tokens[text.num_prompt :], skip_special_tokens=True)
        assert answer == answers[prompt].choices[0].text
    for file in folder.iterdir():
        assert b"marker-" not in file.read_bytes()


def test_the_defence_is_on_every_session(recorded: Any) -> None:
    """The same prompt crosses as other rows each time."""
    endpoint, folder, _ = recorded
    client = endpoint.client()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: client.completions.create(model="tiny", prompt="same", max_tokens=1), range(4)))
    endpoint.close()
    rows = [frame.tensor for frame in open_bundle(folder).frames(channels_pb2.HOP_FORWARD)]
    assert len({row.numpy().tobytes() for row in rows}) == len(rows) == 4


def test_nothing_crosses_that_cannot_be_recorded(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails with the reason."""
    endpoint, *_ = recorded

    def fail(_recording: Any) -> None:
        raise RecordingError("the disk is full", remedy="make room")

    monkeypatch.setattr("tln.recording.Recording.raise_if_failed", fail)
    with pytest.raises(openai.InternalServerError) as raised:
        endpoint.client().completions.create(model="tiny", prompt="x", max_tokens=1)
    assert raised.value.code == "recording_failed"
    monkeypatch.undo()
