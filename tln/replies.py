"""Reads the untrusted node's answers: nothing of them is used unless it is what was asked for.

Refused, with FrameError: another kind of message, another step, hop, dtype or shape, NaN or Inf, and a frame larger
than the one that was sent could bring back; all before anything is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from splitwire.errors import FrameError
from splitwire.frames import FrameAssembler, FrameLimits, TensorFrame, payload_bytes
from splitwire.v1 import stack_pb2
from tln.exchanges import Reader, Route


def frame_reader(route: Route, dtype: stack_pb2.WireDtype, shape: Sequence[int]) -> Reader[TensorFrame]:
    """Puts the answer to a frame of `shape` together: the same shape, in `dtype`."""
    limits = FrameLimits(payload_bytes(dtype, shape), math.prod(shape[:-1]), shape[-1])
    assembler = FrameAssembler(limits)

    def read(response: stack_pb2.ExchangeResponse) -> TensorFrame | None:
        if response.WhichOneof("payload") != "frame":
            raise _unexpected(route, response)
        if response.frame.HasField("header"):
            _check_reply(response.frame.header, route, dtype, shape)
        return assembler.feed(response.frame)

    return read


def control_reader(route: Route) -> Reader[stack_pb2.ControlResult]:
    """Takes the result of a control message."""

    def read(response: stack_pb2.ExchangeResponse) -> stack_pb2.ControlResult:
        result = response.control_result
        if response.WhichOneof("payload") != "control_result" or result.step != route.step:
            raise _unexpected(route, response)
        return result

    return read


def _check_reply(header: stack_pb2.FrameHeader, route: Route, dtype: stack_pb2.WireDtype, shape: Sequence[int]) -> None:
    asked = (route.reply_hop, route.step, dtype, list(shape))
    got = (header.hop, header.step, header.dtype, list(header.shape))
    if got != asked:
        raise FrameError(
            f"the peer answered {route} with (hop, step, dtype, shape) {got} where {asked} was due",
            remedy="check that both sides run the same version; the peer's answer is not used",
        )


def _unexpected(route: Route, response: stack_pb2.ExchangeResponse) -> FrameError:
    return FrameError(
        f"the peer answered {route} with {response.WhichOneof('payload') or 'an empty message'}",
        remedy="check that both sides run the same version; the peer's answer is not used",
    )


def squared_norm(result: stack_pb2.ControlResult) -> float:
    """The squared gradient norm that the peer claims; FrameError unless it is finite and at least 0."""
    value = float(result.squared_gradient_norm)
    if not math.isfinite(value) or value < 0:
        raise FrameError(
            f"the peer's squared gradient norm of step {result.step} is not a finite number of at least 0",
            remedy="lower the learning rate, or look at the untrusted node",
        )
    return value
