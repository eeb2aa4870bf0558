"""The request says what the settings say, and the grant is checked."""

from __future__ import annotations

from typing import Any

import pytest

from splitwire.errors import HandshakeError, SettingsError
from splitwire.v1 import stack_pb2
from tln.session import check_grant, open_crossing, session_request
from tln.stack_settings import LoraSettings, StackSettings

IDENTITY = stack_pb2.ModelIdentity(family="llama", first_layer=2, last_layer=4, hidden_width=48, fingerprint="ab" * 32)


def grant(**changes: Any) -> stack_pb2.OpenSessionResponse:
    fields: dict[str, Any] = {
        "session_id": "0f" * 16,
        "protocol_version": 1,
        "model": IDENTITY,
        "max_chunk_bytes": 1 << 20,
        "max_frame_bytes": 1 << 28,
    }
    return stack_pb2.OpenSessionResponse(**fields | changes)


def test_an_inference_session_asks_for_a_cache_and_trains_nothing() -> None:
    """Whatever the training settings are."""
    request = session_request(StackSettings(max_cache_positions=99), IDENTITY, mode="inference")
    assert request.max_cache_positions == 99
    assert request.trainable_scope == stack_pb2.TRAINABLE_SCOPE_UNSPECIFIED
    assert not request.HasField("optimizer")
    assert not request.HasField("lora")


def test_a_training_session_asks_for_no_cache_and_names_what_it_trains() -> None:
    """Adapters go to the family's attention projections unless others are named."""
    request = session_request(StackSettings(), IDENTITY, mode="training")
    assert request.max_cache_positions == 0
    assert request.trainable_scope == stack_pb2.TRAINABLE_SCOPE_LORA
    assert list(request.lora.target_modules) == ["q_proj", "k_proj", "v_proj", "o_proj"]
    gpt2 = stack_pb2.ModelIdentity(family="gpt2")
    assert "c_attn" in session_request(StackSettings(), gpt2, mode="training").lora.target_modules
    named = StackSettings(lora=LoraSettings(target_modules=("up_proj",)))
    assert list(session_request(named, IDENTITY, mode="training").lora.target_modules) == ["up_proj"]


def test_the_gram_stack_names_no_model_and_cannot_generate() -> None:
    """Nothing of the layers is told to a node that does not hold them."""
    settings = StackSettings(kind="gram")
    request = session_request(settings, IDENTITY, mode="training", gram_width=64)
    assert not request.HasField("model")
    assert request.gram.width == 64
    with pytest.raises(SettingsError, match="not causal"):
        session_request(settings, IDENTITY, mode="inference", gram_width=64)
    with pytest.raises(SettingsError, match="width"):
        session_request(settings, IDENTITY, mode="training")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"protocol_version": 2}, "version 2"),
        ({"session_id": "../../etc/passwd"}, "session id"),
        ({"session_id": "AB" * 16}, "session id"),
        ({"max_chunk_bytes": 1}, "chunks of 1"),
        ({"max_frame_bytes": 0}, "frames of 0"),
        ({"model": stack_pb2.ModelIdentity(family="gpt2")}, "family"),
        (
            {"model": stack_pb2.ModelIdentity(family="llama", first_layer=2, last_layer=4, hidden_width=48)},
            "fingerprint",
        ),
    ],
)
def test_a_grant_that_is_not_what_was_asked_for_is_refused(changes: dict[str, Any], match: str) -> None:
    """Field by field."""
    request = session_request(StackSettings(), IDENTITY, mode="inference")
    with pytest.raises(HandshakeError, match=match):
        check_grant(request, grant(**changes))


class Granting:
    """A transport that grants what it was made with."""

    def __init__(self, answer: stack_pb2.OpenSessionResponse) -> None:
        self.answer, self.is_closed = answer, False
        self.observers: list[Any] = []
        self.session_hash = "x"

    def open(self, _request: stack_pb2.OpenSessionRequest) -> stack_pb2.OpenSessionResponse:
        return self.answer

    def exchange(self, *_: Any) -> Any:
        raise AssertionError

    def close(self) -> None:
        self.is_closed = True


def test_a_session_that_was_granted_wrongly_is_closed() -> None:
    """It would hold the peer's memory until its lease ends."""
    transport = Granting(grant(protocol_version=3))
    with pytest.raises(HandshakeError):
        open_crossing(transport, session_request(StackSettings(), IDENTITY, mode="inference"))
    assert transport.is_closed


def test_chunks_and_frames_keep_the_peers_limits() -> None:
    """And our own."""
    transport = Granting(grant(max_chunk_bytes=8192, max_frame_bytes=1 << 40))
    crossing = open_crossing(transport, session_request(StackSettings(), IDENTITY, mode="training"))
    assert crossing._chunk_bytes == 8192
    assert crossing._max_frame_bytes == 1 << 30
    assert crossing.is_training
