"""The one module through which everything crosses to the untrusted node.

    returned = crossing.cross(rows, context)      FORWARD out, RETURN in; a differentiable torch operation
    returned.sum().backward()                     BACKWARD out (after the gradient policy), INPUT_GRADIENT in

What leaves: the rows given to `cross`, the gradient as the policy releases it, and the header fields of StepContext
that tln/context.py names. Nothing else of the context is read here.

Refused: sending a gradient without a policy; anything of the peer's that has another step, hop, dtype or shape than
asked for, or NaN or Inf, or that it has answered to other rows before (tln.replay_window); using the graph of a step
twice (tln.autograd).

Invariants: FORWARD frames and control messages take steps of one strictly increasing counter, in the order in which
they are sent. Reserve a step, use it, then reserve the next. What garbage collection frees (caches, graphs) is only
noted where that happens, and told to the peer when the next step is reserved. One thread at a time.

Legend: B sequences or frames, T rows or positions, D width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from splitwire.errors import LimitError, SettingsError, StateError, UnavailableError
from splitwire.frames import FrameLimits, encode_frame, payload_bytes, wire_dtype
from splitwire.v1 import channels_pb2, stack_pb2
from splitwire.wire import CHUNK_BYTES
from tln.autograd import Cross
from tln.context import ComputeMode, PaddingSide, RowTruth, StepContext
from tln.exchanges import Route, Transport
from tln.outgoing import ForwardListener, GradientPolicy, Guard, Outgoing, StepCounter
from tln.replay_window import ReplayWindow
from tln.replies import control_reader, frame_reader, squared_norm

_MODES: dict[ComputeMode, stack_pb2.ComputeMode] = {
    "evaluate": stack_pb2.COMPUTE_MODE_EVALUATE,
    "train": stack_pb2.COMPUTE_MODE_TRAIN,
    "cached": stack_pb2.COMPUTE_MODE_CACHED,
}
_SIDES: dict[PaddingSide, stack_pb2.PaddingSide] = {
    "left": stack_pb2.PADDING_SIDE_LEFT,
    "right": stack_pb2.PADDING_SIDE_RIGHT,
    "": stack_pb2.PADDING_SIDE_UNSPECIFIED,
}


class Recovery(Protocol):
    """Sends in as many sessions as it takes (tln.recovery)."""

    def send(self, crossing: Crossing, outgoing: Outgoing, context: StepContext, /) -> torch.Tensor:
        """The answer to a FORWARD frame."""

    def deliver(self, crossing: Crossing, control: stack_pb2.Control, /) -> stack_pb2.ControlResult:
        """Has a control message done."""


class Crossing:
    """A session's tensors and control messages. Made by tln.session.open_crossing once the session is granted."""

    def __init__(
        self,
        transport: Transport,
        *,
        request_dtype: str = "fp32",
        response_dtype: str = "fp32",
        policy: GradientPolicy | None = None,
        is_training: bool = False,
        recovery: Recovery | None = None,
        max_frame_bytes: int = FrameLimits.max_frame_bytes,
        chunk_bytes: int = CHUNK_BYTES,
        grid_scale: float = 0.0,
    ) -> None:
        """`grid_scale` is the step of the grid that int8 FORWARD rows are on; 0 for a scale a row. `recovery` keeps
        what a new session needs when this one is lost.
        """
        self.transport = transport
        self.policy = policy
        self.is_training = is_training
        self.recovery = recovery
        self.forward_listeners: list[ForwardListener] = []
        self.guards: list[Guard] = []
        self.window = ReplayWindow()
        self._request_dtype = wire_dtype(request_dtype)
        self._response_dtype = wire_dtype(response_dtype)
        self._max_frame_bytes = max_frame_bytes
        self._chunk_bytes = chunk_bytes
        self._grid_scale = grid_scale
        self.steps = StepCounter()
        self._last_cache_id = 0
        self._deferred: deque[stack_pb2.Control] = deque()

    @property
    def session_hash(self) -> str:
        """The hash by which logs, bundles and truth name the session."""
        return self.transport.session_hash

    @property
    def last_step(self) -> int:
        """The step that was taken last; 0 before the first."""
        return self.steps.last

    def continue_after(self, step: int) -> None:
        """Numbers the steps of a session that goes on with a run from there. StateError once a step was taken."""
        if self.steps.last:
            raise StateError(f"step {self.steps.last} was taken", remedy="continue before anything crosses")
        self.steps.last = step

    def reserve_step(self) -> int:
        """The next step number. Tells the peer first what it may free."""
        self.flush()
        return self.steps.take()

    def cross(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None = None) -> torch.Tensor:
        """What the peer makes of rows [B, T, D]: same shape, dtype and device. Differentiable in mode "train".

        `truth` says what each row really is; it goes to the forward listeners and nowhere else.
        """
        if not torch.is_grad_enabled() or (context.mode != "train" and not rows.requires_grad):
            return self.exchange_rows(rows, context, truth)
        if not rows.requires_grad:
            # The peer waits for BACKWARD even when nothing before the crossing is trained.
            rows = rows.detach().requires_grad_()
        returned: torch.Tensor = Cross.apply(rows, self, context, truth)  # type: ignore[no-untyped-call]
        return returned

    def exchange_rows(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None) -> torch.Tensor:
        """FORWARD out, RETURN in: what the peer makes of rows [B, T, D], without a graph."""
        return self.send(self.outgoing_rows(rows, context, truth))

    def exchange_gradient(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:
        """BACKWARD out as the policy releases it, INPUT_GRADIENT [B, T, D] in. SettingsError without a policy."""
        return self.send(self.outgoing_gradient(self.released(gradient, context), context))

    def optimizer_step(
        self, learning_rate: float, gradient_scale: float = 1.0, max_gradient_norm: float = 0.0
    ) -> float:
        """Has the peer apply its gradients; returns their squared norm before scaling. 0 for no clipping."""
        action = stack_pb2.OptimizerStep(
            learning_rate=learning_rate, gradient_scale=gradient_scale, max_gradient_norm=max_gradient_norm
        )
        return squared_norm(self._send_control(optimizer_step=action))

    def zero_grad(self) -> None:
        """Has the peer drop its gradients."""
        self._send_control(zero_grad=stack_pb2.ZeroGrad())

    def squared_gradient_norm(self) -> float:
        """Squared L2 norm of the peer's accumulated gradients, as the peer says."""
        return squared_norm(self._send_control(gradient_norm=stack_pb2.GradientNorm()))

    def checkpoint(self, label: str) -> str:
        """Has the peer save what the session trained; returns the SHA-256 it names."""
        return str(self._send_control(checkpoint=stack_pb2.Checkpoint(label=label)).checkpoint_digest)

    def drop_checkpoint(self, label: str) -> None:
        """Has the peer remove a checkpoint; one that is gone already is no error."""
        self._send_control(drop_checkpoint=stack_pb2.DropCheckpoint(label=label))

    def max_positions(self, num_sequences: int, width: int) -> int:
        """Most positions of so many sequences that one frame may hold; at least 1."""
        needed = payload_bytes(self._request_dtype, (num_sequences, 1, width))
        return max(1, self._max_frame_bytes // needed)

    def new_cache_id(self) -> int:
        """A number that no cache of this session had."""
        self._last_cache_id += 1
        return self._last_cache_id

    def cache_reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        """New sequence i of the cache is old sequence indices[i]; indices may repeat and leave out."""
        self._send_control(cache_reorder=stack_pb2.CacheReorder(cache_id=cache_id, indices=indices))

    def cache_crop(self, cache_id: int, num_positions: int) -> None:
        """Rolls the cache back to its first `num_positions` positions."""
        self._send_control(cache_crop=stack_pb2.CacheCrop(cache_id=cache_id, num_positions=num_positions))

    def cache_release(self, cache_id: int) -> None:
        """Frees the cache now."""
        self._send_control(cache_release=stack_pb2.CacheRelease(cache_id=cache_id))

    def release_later(self, cache_id: int) -> None:
        """Frees the cache when the next step is reserved. Sends nothing: safe in a finalizer."""
        self._deferred.append(stack_pb2.Control(cache_release=stack_pb2.CacheRelease(cache_id=cache_id)))

    def discard_later(self, step: int) -> None:
        """Has the peer drop the graph of a TRAIN step when the next step is reserved. Safe in a finalizer."""
        self._deferred.append(stack_pb2.Control(discard_step=stack_pb2.DiscardStep(train_step=step)))

    def flush(self) -> None:
        """Tells the peer what it may free, without waiting for the next step."""
        while self._deferred:
            control = self._deferred.popleft()
            try:
                self._control(control)
            except UnavailableError:
                self._deferred.appendleft(control)
                raise

    def close(self) -> None:
        """Ends the session."""
        self._deferred.clear()
        self.transport.close()

    def outgoing_rows(self, rows: torch.Tensor, context: StepContext, truth: RowTruth | None) -> Outgoing:
        """The FORWARD frame of rows [B, T, D], of which the listeners have been told. To be sent once, by `send`."""
        header = stack_pb2.FrameHeader(
            hop=channels_pb2.HOP_FORWARD,
            step=context.step,
            dtype=self._request_dtype,
            compute_mode=_MODES[context.mode],
            cache_id=context.cache_id,
            row_lengths=context.row_lengths,
            padding_side=_SIDES[context.padding_side],
        )
        messages = self._encode(header, rows, self._grid_scale)
        for listener in self.forward_listeners:
            listener(context, truth, messages)
        return Outgoing(messages, Route(context.step, header.hop, channels_pb2.HOP_RETURN), rows, context, truth)

    def outgoing_gradient(self, released: torch.Tensor, context: StepContext) -> Outgoing:
        """The BACKWARD frame of a gradient [B, T, D] that the policy has released."""
        header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_BACKWARD, step=context.step, dtype=self._request_dtype)
        route = Route(context.step, header.hop, channels_pb2.HOP_INPUT_GRADIENT)
        return Outgoing(self._encode(header, released), route, released)

    def released(self, gradient: torch.Tensor, context: StepContext) -> torch.Tensor:
        """What the policy lets cross of a gradient [B, T, D]; asked once a step. SettingsError without a policy."""
        if self.policy is None:
            raise SettingsError(
                "a gradient is due and no gradient policy is set", remedy="choose a policy in the [gradient] section"
            )
        released = self.policy(gradient, context)
        if released.shape != gradient.shape:
            raise SettingsError(
                f"the gradient policy turned shape {list(gradient.shape)} into {list(released.shape)}",
                remedy="use a policy that keeps the shape",
            )
        return released

    def send(self, outgoing: Outgoing) -> torch.Tensor:
        """Sends a frame and gives the answer to it, in the dtype and on the device of what was sent.

        A session that the peer has lost is restored first, where there is a recovery.
        """
        if self.recovery is None or outgoing.context is None:
            return self.send_once(outgoing)
        return self.recovery.send(self, outgoing, outgoing.context)

    def send_once(self, outgoing: Outgoing) -> torch.Tensor:
        """As `send`, in this session or not at all."""
        for guard in self.guards:
            guard(outgoing.route, outgoing.messages)
        route, like = outgoing.route, outgoing.like
        frame = self.transport.exchange(
            outgoing.messages, route, lambda: frame_reader(route, self._response_dtype, like.shape)
        )
        self.window.check(route, like, frame.tensor)
        return frame.tensor.to(like.device, like.dtype)

    def deliver(self, control: stack_pb2.Control) -> stack_pb2.ControlResult:
        """Sends a control message that has its step; as `send`, in the session that there is."""
        if self.recovery is None:
            return self.deliver_once(control)
        return self.recovery.deliver(self, control)

    def deliver_once(self, control: stack_pb2.Control) -> stack_pb2.ControlResult:
        """As `deliver`, in this session or not at all."""
        message = stack_pb2.ExchangeRequest(control=control).SerializeToString()
        route = Route(control.step, channels_pb2.HOP_CONTROL, channels_pb2.HOP_CONTROL)
        return self.transport.exchange([message], route, lambda: control_reader(route))

    def _encode(self, header: stack_pb2.FrameHeader, rows: torch.Tensor, grid_scale: float = 0.0) -> list[bytes]:
        needed = payload_bytes(header.dtype, rows.shape)
        if needed > self._max_frame_bytes:
            raise LimitError(
                f"a frame of {needed} bytes exceeds the peer's limit of {self._max_frame_bytes}",
                remedy="use smaller batches or shorter sequences, or have the peer raise limits.max_frame_bytes",
            )
        return list(encode_frame(header, rows, chunk_bytes=self._chunk_bytes, grid_scale=grid_scale))

    def _send_control(self, **action: Any) -> stack_pb2.ControlResult:
        self.flush()
        return self._control(stack_pb2.Control(**action))

    def _control(self, control: stack_pb2.Control) -> stack_pb2.ControlResult:
        control.step = self.steps.take()
        return self.deliver(control)
