"""What one request means to a stack: checks on the frame's header, then the computation itself.

The checks run on the event loop and change nothing. The `compute_...` functions run on the device's thread and
return the serialized answer. Rows that are not finite after the stack has run are reported as an Outcome with an
error: the stack's state has moved, so the step counts as taken.

Shapes: [B, T, D], B sequences or frames, T positions or rows, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from splitwire.errors import FrameError, LimitError, StateError
from splitwire.frames import encode_frame, torch_dtype, wire_dtype_name
from splitwire.v1 import channels_pb2, stack_pb2
from ucn.intake import TensorRequest
from ucn.stacks.base import ForwardCall, Stack

_NUM_DIMENSIONS = 3
_MODES = {
    stack_pb2.COMPUTE_MODE_EVALUATE: "evaluate",
    stack_pb2.COMPUTE_MODE_TRAIN: "train",
    stack_pb2.COMPUTE_MODE_CACHED: "cached",
}
_SIDES = {
    stack_pb2.PADDING_SIDE_UNSPECIFIED: "",
    stack_pb2.PADDING_SIDE_LEFT: "left",
    stack_pb2.PADDING_SIDE_RIGHT: "right",
}


@dataclass(frozen=True)
class Terms:
    """What the handshake settled for a session."""

    is_gram: bool
    is_training: bool
    width: int
    request_dtype: stack_pb2.WireDtype
    response_dtype: stack_pb2.WireDtype
    compute_dtype: stack_pb2.WireDtype
    max_kept_rows: int

    @classmethod
    def of(cls, request: stack_pb2.OpenSessionRequest, max_kept_rows: int) -> Terms:
        """The terms of a request that passed the handshake."""
        is_gram = request.stack_kind == stack_pb2.STACK_KIND_GRAM
        return cls(
            is_gram=is_gram,
            is_training=request.mode == stack_pb2.SESSION_MODE_TRAINING,
            width=request.gram.width if is_gram else request.model.hidden_width,
            request_dtype=request.request_dtype,
            response_dtype=request.response_dtype,
            compute_dtype=request.compute_dtype,
            max_kept_rows=max_kept_rows,
        )


@dataclass(frozen=True)
class Outcome:
    """A computation that ran. `error` tells that its result cannot be sent although the step is taken."""

    messages: tuple[bytes, ...] = ()
    error: FrameError | None = None


def forward_call(header: stack_pb2.FrameHeader, terms: Terms) -> ForwardCall:
    """The call that a FORWARD header asks for; FrameError or StateError when the session cannot take it."""
    check_tensor(header, terms)
    mode = _MODES.get(header.compute_mode)
    if mode is None:
        raise FrameError(
            f"compute_mode {int(header.compute_mode)} of step {header.step} is unknown",
            remedy="use EVALUATE, TRAIN or CACHED",
        )
    if mode == "train" and not terms.is_training:
        raise StateError(
            f"step {header.step} is a TRAIN step in an inference session", remedy="open the session for training"
        )
    if mode != "cached" and header.cache_id:
        raise FrameError(f"step {header.step} names a cache and is not CACHED", remedy="leave cache_id out")
    _check_row_lengths(header, terms)
    return ForwardCall(
        step=header.step,
        mode=mode,  # type: ignore[arg-type]
        cache_id=header.cache_id,
        row_lengths=tuple(header.row_lengths),
        padding_side=_SIDES[header.padding_side],  # type: ignore[arg-type]
    )


def check_tensor(header: stack_pb2.FrameHeader, terms: Terms) -> None:
    """FrameError unless dtype and shape are what the handshake settled."""
    if header.dtype != terms.request_dtype:
        raise FrameError(
            f"step {header.step} is in {wire_dtype_name(header.dtype)} and the session in "
            f"{wire_dtype_name(terms.request_dtype)}",
            remedy="send the request_dtype of the handshake",
        )
    if len(header.shape) != _NUM_DIMENSIONS or header.shape[-1] != terms.width:
        raise FrameError(
            f"step {header.step} has shape {list(header.shape)}, not [sequences or frames, rows, {terms.width}]",
            remedy="send three dimensions and the width of the handshake",
        )


def check_kept_rows(header: stack_pb2.FrameHeader, terms: Terms, num_kept_rows: int) -> int:
    """Rows of a TRAIN frame; LimitError when the session may not keep the graphs of so many."""
    num_rows = header.shape[0] * header.shape[1]
    if num_kept_rows + num_rows > terms.max_kept_rows:
        raise LimitError(
            f"step {header.step} has {num_rows} rows and {num_kept_rows} wait for BACKWARD, over the limit of "
            f"{terms.max_kept_rows}",
            remedy="send smaller batches, BACKWARD or DiscardStep first, or raise the node's limits.max_kept_rows",
        )
    return num_rows


def _check_row_lengths(header: stack_pb2.FrameHeader, terms: Terms) -> None:
    sequences, positions = header.shape[0], header.shape[1]
    if not header.row_lengths:
        if header.padding_side:
            raise FrameError(
                f"step {header.step} has a padding side and no row_lengths", remedy="give row_lengths, or neither"
            )
        return
    if terms.is_gram:
        raise FrameError(
            f"step {header.step} has row_lengths and the gram stack knows no padding", remedy="send full frames"
        )
    if header.padding_side not in (stack_pb2.PADDING_SIDE_LEFT, stack_pb2.PADDING_SIDE_RIGHT):
        raise FrameError(f"step {header.step} has row_lengths and no padding side", remedy="say LEFT or RIGHT")
    if len(header.row_lengths) != sequences or not all(1 <= length <= positions for length in header.row_lengths):
        raise FrameError(
            f"row_lengths of step {header.step} do not fit {sequences} sequences of {positions} positions",
            remedy="give one length a sequence, from 1 to the number of positions",
        )


def compute_forward(
    stack: Stack, request: TensorRequest, call: ForwardCall, terms: Terms, device: torch.device
) -> Outcome:
    """Runs the stack on a FORWARD frame and serializes the RETURN frame."""
    returned = stack.forward(on_device(request, terms, device), call)
    outcome = encode(channels_pb2.HOP_RETURN, call.step, returned, terms)
    if outcome.error is not None and call.mode == "train":
        stack.discard(call.step)
    return outcome


def compute_backward(stack: Stack, request: TensorRequest, terms: Terms, device: torch.device) -> Outcome:
    """Runs the stack backwards on a BACKWARD frame and serializes the INPUT_GRADIENT frame."""
    step = request.frame.header.step
    gradient = stack.backward(step, on_device(request, terms, device))
    return encode(channels_pb2.HOP_INPUT_GRADIENT, step, gradient, terms)


def on_device(request: TensorRequest, terms: Terms, device: torch.device) -> torch.Tensor:
    """The frame's rows in the compute dtype."""
    return request.frame.tensor.to(device, torch_dtype(terms.compute_dtype))


def encode(hop: channels_pb2.Hop, step: int, tensor: torch.Tensor, terms: Terms) -> Outcome:
    """The answering frame's messages, or why it cannot be sent."""
    header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=terms.response_dtype)
    if terms.response_dtype != stack_pb2.WIRE_DTYPE_INT8_ROW:
        tensor = tensor.detach().to(torch_dtype(terms.response_dtype))  # so that an overflow is seen here
    try:
        return Outcome(tuple(encode_frame(header, tensor)))
    except FrameError as error:
        return Outcome(error=error)
