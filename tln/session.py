"""What the trusted node asks of the untrusted one when it opens a session, and what it accepts as an answer.

The untrusted node echoes the model it holds; every difference is a HandshakeError that names the field. A lying
node can echo anything: the handshake detects mistakes, not lies. Everything in the request is public by design; no
seed, no text and no number of real rows is part of it.

Refused here: training settings in an inference session, a cache in a training session, and a grant that breaks the
contract.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import torch

from splitwire.errors import HandshakeError, SettingsError
from splitwire.frames import FrameLimits, torch_dtype, wire_dtype, wire_dtype_name
from splitwire.v1 import stack_pb2
from splitwire.wire import CHUNK_BYTES, PROTOCOL_VERSION
from tln.connection import RecoverySettings
from tln.crossing import Crossing
from tln.exchanges import Transport
from tln.outgoing import GradientPolicy
from tln.recovery import Recovery
from tln.stack_settings import GramStackSettings, RemoteOptimizerSettings, StackSettings

SessionMode = Literal["inference", "training"]

_MIN_CHUNK_BYTES = 4096
_SESSION_ID = re.compile(r"[0-9a-f]{32}")
_SCOPES = {
    "none": stack_pb2.TRAINABLE_SCOPE_NONE,
    "full": stack_pb2.TRAINABLE_SCOPE_FULL,
    "lora": stack_pb2.TRAINABLE_SCOPE_LORA,
}
_MODES = {"inference": stack_pb2.SESSION_MODE_INFERENCE, "training": stack_pb2.SESSION_MODE_TRAINING}
_ATTENTION_PROJECTIONS = {"gpt2": ("c_attn", "c_proj")}
_USUAL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Continuation:
    """Where a run goes on: the untrusted node's checkpoint and its digest, the last step, and the streams' scope."""

    label: str
    digest: str
    last_step: int
    key_scope: str

    def moved_to(self, scope: str) -> Continuation:
        """The same place under streams of another scope."""
        return Continuation(self.label, self.digest, self.last_step, scope)


def session_request(
    settings: StackSettings,
    model: stack_pb2.ModelIdentity,
    *,
    mode: SessionMode,
    compute_dtype: str = "fp32",
    gram_width: int = 0,
) -> stack_pb2.OpenSessionRequest:
    """The request for a session. `gram_width` is the width of latent rows, for the gram stack alone."""
    request = stack_pb2.OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        mode=_MODES[mode],
        request_dtype=wire_dtype(settings.request_dtype),
        response_dtype=wire_dtype(settings.response_dtype),
        compute_dtype=wire_dtype(compute_dtype),
        resume_checkpoint=settings.resume_checkpoint,
    )
    if mode == "training":
        request.optimizer.CopyFrom(_optimizer(settings.optimizer))
    if settings.kind == "gram":
        _fill_gram(request, settings.gram, mode, gram_width)
    else:
        _fill_transformer(request, settings, model)
    return request


def open_crossing(
    transport: Transport,
    request: stack_pb2.OpenSessionRequest,
    *,
    policy: GradientPolicy | None = None,
    continuation: Continuation | None = None,
    grid_scale: float = 0.0,
    recovery: RecoverySettings = RecoverySettings(),  # noqa: B008 - frozen
) -> Crossing:
    """Opens the session and gives its crossing; HandshakeError when the grant is not what was asked for.

    With `continuation` the request's resume_checkpoint is its label. `recovery` is for sessions of mode inference.
    """
    if continuation is not None:
        request.resume_checkpoint = continuation.label
    grant = _open(transport, request, continuation)
    is_training = request.mode == stack_pb2.SESSION_MODE_TRAINING
    crossing = Crossing(
        transport,
        request_dtype=wire_dtype_name(request.request_dtype),
        response_dtype=wire_dtype_name(request.response_dtype),
        policy=policy,
        is_training=is_training,
        recovery=None if is_training or not recovery.attempts else _recovery(recovery, transport, request),
        max_frame_bytes=min(grant.max_frame_bytes, FrameLimits.max_frame_bytes),
        chunk_bytes=min(grant.max_chunk_bytes, CHUNK_BYTES),
        grid_scale=grid_scale,
    )
    if continuation is not None:
        crossing.continue_after(continuation.last_step)
    return crossing


def _open(
    transport: Transport, request: stack_pb2.OpenSessionRequest, continuation: Continuation | None
) -> stack_pb2.OpenSessionResponse:
    grant = transport.open(request)
    try:
        check_grant(request, grant)
        if continuation is not None:
            _check_resumed(continuation, grant)
    except HandshakeError:
        transport.close()
        raise
    return grant


def _recovery(settings: RecoverySettings, transport: Transport, request: stack_pb2.OpenSessionRequest) -> Recovery:
    is_int8 = request.request_dtype == stack_pb2.WIRE_DTYPE_INT8_ROW
    dtype = torch.float32 if is_int8 else torch_dtype(request.request_dtype)
    return Recovery(settings, dtype, lambda: check_grant(request, transport.open(request)))


def check_grant(request: stack_pb2.OpenSessionRequest, grant: stack_pb2.OpenSessionResponse) -> None:
    """HandshakeError for the first field of a grant that does not fit the request or the contract."""
    if grant.protocol_version != PROTOCOL_VERSION:
        raise HandshakeError(
            f"the untrusted node speaks protocol version {grant.protocol_version}, this node {PROTOCOL_VERSION}",
            remedy="run the same release of splitwire on both sides",
        )
    if not _SESSION_ID.fullmatch(grant.session_id):
        raise HandshakeError("the untrusted node's session id is not 32 hex digits", remedy="check what runs there")
    if grant.max_chunk_bytes < _MIN_CHUNK_BYTES or grant.max_frame_bytes < 1:
        raise HandshakeError(
            f"the untrusted node takes chunks of {grant.max_chunk_bytes} and frames of {grant.max_frame_bytes} bytes",
            remedy=f"it must take chunks of at least {_MIN_CHUNK_BYTES} bytes and frames of some size",
        )
    if request.stack_kind == stack_pb2.STACK_KIND_TRANSFORMER:
        _check_identity(request.model, grant.model)


def _check_resumed(continuation: Continuation, grant: stack_pb2.OpenSessionResponse) -> None:
    if grant.resumed_digest != continuation.digest:
        raise HandshakeError(
            f"checkpoint {continuation.label} on the untrusted node is not the one that this run saved",
            remedy="restore it there from a copy, or start again without --resume",
        )


def _check_identity(ours: stack_pb2.ModelIdentity, theirs: stack_pb2.ModelIdentity) -> None:
    for name in ("family", "first_layer", "last_layer", "hidden_width", "fingerprint"):
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            shown = str(there)[:80] if str(there).isascii() else "something else"
            raise HandshakeError(
                f"model.{name} is {here} here and {shown} on the untrusted node",
                remedy="give both nodes the same [model] settings",
            )


def _fill_transformer(
    request: stack_pb2.OpenSessionRequest, settings: StackSettings, model: stack_pb2.ModelIdentity
) -> None:
    request.stack_kind = stack_pb2.STACK_KIND_TRANSFORMER
    request.model.CopyFrom(model)
    if request.mode == stack_pb2.SESSION_MODE_INFERENCE:
        request.max_cache_positions = settings.max_cache_positions
        request.max_cache_sequences = settings.max_cache_sequences
        return
    request.trainable_scope = _SCOPES[settings.trainable]
    if settings.trainable == "lora":
        lora = settings.lora
        targets = lora.target_modules or _ATTENTION_PROJECTIONS.get(model.family, _USUAL_PROJECTIONS)
        request.lora.CopyFrom(stack_pb2.LoraSettings(rank=lora.rank, alpha=lora.alpha, target_modules=targets))


def _fill_gram(request: stack_pb2.OpenSessionRequest, gram: GramStackSettings, mode: SessionMode, width: int) -> None:
    if mode == "inference":
        raise SettingsError(
            "stack.kind is gram, which is not causal and cannot generate", remedy="use stack.kind = transformer"
        )
    if width < 1:
        raise SettingsError(f"gram width is {width}", remedy="set the bottleneck's width, at least 1")
    request.stack_kind = stack_pb2.STACK_KIND_GRAM
    request.gram.CopyFrom(
        stack_pb2.GramSettings(
            width=width,
            num_experts=gram.num_experts,
            num_layers=gram.num_layers,
            radial=gram.radial,
            sign_invariant=gram.sign_invariant,
        )
    )


def _optimizer(settings: RemoteOptimizerSettings) -> stack_pb2.OptimizerSettings:
    return stack_pb2.OptimizerSettings(
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
