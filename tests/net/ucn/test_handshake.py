"""OpenSession refuses what the two sides do not agree on, and says what each has."""

from __future__ import annotations

from typing import Any

import pytest

from splitwire import wire
from splitwire.v1 import stack_pb2

FP16, INT8 = stack_pb2.WIRE_DTYPE_FP16, stack_pb2.WIRE_DTYPE_INT8_ROW


def _model(identity: Any, **changes: Any) -> stack_pb2.ModelIdentity:
    fields = {field.name: getattr(identity, field.name) for field in identity.DESCRIPTOR.fields}
    return stack_pb2.ModelIdentity(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "both_sides"),
    [
        ({"protocol_version": 2}, "protocol_version is 2 on the trusted node and 1 on the untrusted node"),
        ({"stack_kind": 0}, "stack_kind 0 is asked for; this node runs transformer"),
        ({"stack_kind": stack_pb2.STACK_KIND_GRAM}, "stack_kind gram is asked for; this node runs transformer"),
        ({"mode": 0}, "mode 0 is unknown"),
        ({"request_dtype": 0}, "request_dtype 0"),
        ({"response_dtype": 9}, "response_dtype 9"),
        ({"compute_dtype": INT8}, "compute_dtype 4"),
        ({"compute_dtype": FP16}, "compute_dtype is fp16 on the trusted node and fp32 on the untrusted node"),
        ({"resume_checkpoint": "../../etc"}, "checkpoint label"),
    ],
)
def test_a_field_that_does_not_fit_is_refused(
    start_server: Any, connect: Any, kit: Any, changes: dict[str, Any], both_sides: str
) -> None:
    """The refusal is FAILED_PRECONDITION, names the field and both values, and tells what to change."""
    client = connect(start_server(kit.node().build(), stacks=("transformer",)))
    with pytest.raises(kit.refusal, match=both_sides) as refusal:
        client.open(kit.request(**changes))
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "HandshakeError")
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [("family", "gpt2"), ("first_layer", 1), ("last_layer", 5), ("hidden_width", 9), ("fingerprint", "cd" * 32)],
)
def test_another_model_or_cut_is_refused(scripted: Any, kit: Any, field: str, value: Any) -> None:
    """Each part of the identity is compared; the refusal shows both."""
    _, _, client = scripted
    with pytest.raises(kit.refusal, match=f"model {field} is") as refusal:
        client.open(kit.request(model=_model(kit.identity, **{field: value})))
    assert refusal.value.error == "HandshakeError"
    for shown in (value, getattr(kit.identity, field)):
        assert str(shown) in refusal.value.details


def test_a_node_without_a_model_refuses_the_transformer(start_server: Any, connect: Any, kit: Any) -> None:
    """A gram-only node says what it runs."""
    with pytest.raises(kit.refusal, match="this node runs gram"):
        connect(start_server()).open(kit.request())


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": stack_pb2.SESSION_MODE_INFERENCE},
        {"max_cache_positions": 8, "max_cache_sequences": 1},
        {"gram": stack_pb2.GramSettings(width=0, num_experts=1, num_layers=1)},
        {"model": stack_pb2.ModelIdentity(fingerprint="ab" * 32)},
        {"optimizer": stack_pb2.OptimizerSettings(beta1=1.5, beta2=0.9, epsilon=1e-8)},
        {"optimizer": stack_pb2.OptimizerSettings(beta1=float("nan"), beta2=0.9, epsilon=1e-8)},
    ],
)
def test_what_the_gram_stack_cannot_do_is_refused(
    start_server: Any, connect: Any, kit: Any, changes: dict[str, Any]
) -> None:
    """The stack's own refusals reach the peer as such, and leave no session behind."""
    running = start_server()
    client = connect(running)
    with pytest.raises(kit.refusal) as refusal:
        client.open(kit.gram_request(**changes))
    assert (refusal.value.code, refusal.value.error) == ("FAILED_PRECONDITION", "HandshakeError")
    assert len(running.server.table) == 0


def test_a_long_echo_is_cut_and_made_printable(scripted: Any, kit: Any) -> None:
    """What a peer sent comes back bounded and in ASCII: it also goes to metadata and logs."""
    _, _, client = scripted
    with pytest.raises(kit.refusal) as refusal:
        client.open(kit.request(model=_model(kit.identity, family="\u00fc\n" * 5000)))
    assert len(refusal.value.details) < 400
    assert refusal.value.details.isascii()
    assert "\n" not in refusal.value.details


@pytest.mark.parametrize("method", [wire.OPEN_SESSION, wire.CLOSE_SESSION])
def test_bytes_that_are_no_message_are_refused(scripted: Any, kit: Any, method: str) -> None:
    """Garbage is the peer's mistake, not an internal error."""
    _, _, client = scripted
    with pytest.raises(kit.refusal, match="are not a") as refusal:
        client.call(method, b"\xff\xff\xff")
    assert (refusal.value.code, refusal.value.error) == ("INVALID_ARGUMENT", "FrameError")
