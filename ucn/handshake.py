"""Checks an OpenSessionRequest against what this node holds, before anything is built for the session.

A mismatch says what each side has and what to change, so that a user never has to guess which end is wrong. The
stack checks the settings that only it knows (adapters, optimizer, gram shape) and the combinations that it refuses:
see ucn.stacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from splitwire.errors import HandshakeError
from splitwire.frames import wire_dtype_name
from splitwire.v1 import stack_pb2
from splitwire.wire import LABEL_PATTERN, PROTOCOL_VERSION
from ucn.stacks import STACK_NAMES

COMPUTE_DTYPES = (stack_pb2.WIRE_DTYPE_FP32, stack_pb2.WIRE_DTYPE_BF16, stack_pb2.WIRE_DTYPE_FP16)
WIRE_DTYPES = (*COMPUTE_DTYPES, stack_pb2.WIRE_DTYPE_INT8_ROW)
_MODES = (stack_pb2.SESSION_MODE_INFERENCE, stack_pb2.SESSION_MODE_TRAINING)
_MAX_ECHO = 80
_SIDES = ("on the trusted node", "on the untrusted node")


def check_request(
    request: stack_pb2.OpenSessionRequest,
    *,
    stacks: Sequence[str],
    identity: stack_pb2.ModelIdentity | None,
    compute_dtype: str,
) -> None:
    """HandshakeError for the first field on which the two sides do not agree.

    `identity` and `compute_dtype` tell what this node's transformer stack is; None when it holds no model.
    """
    if request.protocol_version != PROTOCOL_VERSION:
        raise HandshakeError(
            f"protocol_version is {request.protocol_version} {_SIDES[0]} and {PROTOCOL_VERSION} {_SIDES[1]}",
            remedy="run the same release of splitwire on both sides",
        )
    _check_kind(request, stacks)
    _check_dtypes(request)
    if request.stack_kind == stack_pb2.STACK_KIND_TRANSFORMER:
        _check_transformer(request, identity, compute_dtype)
    elif request.model.fingerprint:
        raise HandshakeError(
            "model.fingerprint is given and the gram stack holds no layer", remedy="leave the fingerprint empty"
        )
    if request.resume_checkpoint:
        check_label(request.resume_checkpoint)


def check_label(label: str) -> None:
    """HandshakeError unless it can name a checkpoint."""
    if not LABEL_PATTERN.fullmatch(label):
        raise HandshakeError(
            f"checkpoint label {_echo(label)} is not acceptable",
            remedy="use 1 to 64 letters, digits, '-' and '_'",
        )


def _check_kind(request: stack_pb2.OpenSessionRequest, stacks: Sequence[str]) -> None:
    name = STACK_NAMES.get(request.stack_kind)
    if name not in stacks:
        raise HandshakeError(
            f"stack_kind {name or int(request.stack_kind)} is asked for; this node runs {', '.join(stacks)}",
            remedy="choose another stack, or allow it in the untrusted node's setting stacks",
        )
    if request.mode not in _MODES:
        raise HandshakeError(f"mode {int(request.mode)} is unknown", remedy="ask for inference or training")


def _check_dtypes(request: stack_pb2.OpenSessionRequest) -> None:
    for field, value, accepted in (
        ("request_dtype", request.request_dtype, WIRE_DTYPES),
        ("response_dtype", request.response_dtype, WIRE_DTYPES),
        ("compute_dtype", request.compute_dtype, COMPUTE_DTYPES),
    ):
        if value not in accepted:
            raise HandshakeError(
                f"{field} {int(value)} is not acceptable",
                remedy=f"use {', '.join(wire_dtype_name(dtype) for dtype in accepted)}",
            )


def _check_transformer(
    request: stack_pb2.OpenSessionRequest, identity: stack_pb2.ModelIdentity | None, compute_dtype: str
) -> None:
    if identity is None:
        raise HandshakeError("this node holds no model", remedy="allow the transformer stack in its settings")
    _check_identity(request.model, identity)
    asked = wire_dtype_name(request.compute_dtype)
    if asked != compute_dtype:
        raise HandshakeError(
            f"compute_dtype is {asked} {_SIDES[0]} and {compute_dtype} {_SIDES[1]}",
            remedy="set the same model.dtype on both sides",
        )


def _check_identity(theirs: stack_pb2.ModelIdentity, ours: stack_pb2.ModelIdentity) -> None:
    for field, remedy in (
        ("family", "use the same model on both sides"),
        ("first_layer", "set the same model.first_layer on both sides"),
        ("last_layer", "set the same model.last_layer on both sides"),
        ("hidden_width", "use the same model on both sides"),
        ("fingerprint", "use the same checkpoint (source, revision, gguf_file) on both sides; see `ucn info`"),
    ):
        there, here = getattr(theirs, field), getattr(ours, field)
        if there != here:
            raise HandshakeError(
                f"model {field} is {_echo(there)} {_SIDES[0]} and {_echo(here)} {_SIDES[1]}", remedy=remedy
            )


def _echo(value: object) -> str:
    """A peer's value, quoted and bounded: it goes into logs and back to the peer."""
    return repr(value)[:_MAX_ECHO]
