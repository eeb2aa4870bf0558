"""One pass for the CACHED frames of several sessions, and the pieces of one that is long.

A frame that its stack refuses is left out before the pass and answered with the refusal. If the pass itself fails, no
cache has changed, and each frame runs alone: what fails then fails its own session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from splitwire.backbone import MiddleModel, step_together
from splitwire.errors import PeerError
from splitwire.v1 import channels_pb2
from ucn.batching import Batcher
from ucn.executor import DeviceExecutor
from ucn.intake import TensorRequest
from ucn.stacks.base import CachedStep, ForwardCall, SharedStack
from ucn.steps import Outcome, Terms, compute_forward, encode, on_device


@dataclass(frozen=True)
class CachedFrame:
    """A CACHED frame of one session that may share its pass."""

    stack: SharedStack
    layers: MiddleModel
    request: TensorRequest
    call: ForwardCall
    terms: Terms


def compute_together(
    frames: Sequence[CachedFrame], device: torch.device, observe: Callable[[int], None]
) -> list[Outcome | Exception]:
    """The outcome of each frame, or what it raises; `observe` is told how many frames each pass took."""
    results: dict[int, Outcome | Exception] = {}
    begun: dict[int, CachedStep] = {}
    if len(frames) > 1:
        for number, frame in enumerate(frames):
            try:
                begun[number] = frame.stack.begin_cached(on_device(frame.request, frame.terms, device), frame.call)
            except PeerError as error:
                results[number] = error
        results.update(_pass(frames, begun))
    for number, frame in enumerate(frames):
        if number not in results:
            results[number] = _alone(frame, device)
            observe(1)
    if len(begun) > 1:
        observe(len(begun))
    return [results[number] for number in range(len(frames))]


def _pass(frames: Sequence[CachedFrame], begun: dict[int, CachedStep]) -> dict[int, Outcome]:
    """What the pass answers; nothing when it failed, or when there are not two frames that share layers."""
    if len(begun) < 2 or len({frames[number].layers for number in begun}) > 1:
        return {}
    layers = frames[next(iter(begun))].layers
    try:
        with torch.no_grad():
            outputs = step_together(layers, [step.given for step in begun.values()])
    except Exception:  # noqa: BLE001 - each frame now runs alone and raises what is its own
        return {}
    return {
        number: encode(channels_pb2.HOP_RETURN, frames[number].call.step, step.finish(output), frames[number].terms)
        for (number, step), output in zip(begun.items(), outputs, strict=True)
    }


def _alone(frame: CachedFrame, device: torch.device) -> Outcome | Exception:
    try:
        return compute_forward(frame.stack, frame.request, frame.call, frame.terms, device)
    except Exception as error:  # noqa: BLE001 - it belongs to this frame's session
        return error


class Sharing:
    """How the CACHED frames of one session reach the device: with those of others, or in pieces between theirs."""

    def __init__(
        self,
        stack: SharedStack,
        executor: DeviceExecutor,
        batcher: Batcher[CachedFrame, Outcome],
        *,
        piece_positions: int,
        timed: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._stack = stack
        self._executor = executor
        self._batcher = batcher
        self._piece_positions = piece_positions
        self._timed = timed

    def frame(self, request: TensorRequest, call: ForwardCall, terms: Terms) -> CachedFrame | None:
        """The frame as others may share its layers; None for what runs alone and whole."""
        layers = self._stack.shared_layers if call.mode == "cached" else None
        return None if layers is None else CachedFrame(self._stack, layers, request, call, terms)

    async def run(self, frame: CachedFrame, caller: str) -> Outcome:
        """What the frame's session is answered; raises what its stack raises."""
        shape = frame.request.frame.header.shape
        num_rows = int(shape[0] * shape[1])
        if self._batcher.takes(num_rows):
            return await self._batcher.run(frame, caller, num_rows)
        steps = self._pieces(frame)
        while True:
            outcome = await self._executor.run(lambda: next(steps))
            if outcome is not None:
                return outcome

    def _pieces(self, frame: CachedFrame) -> Iterator[Outcome | None]:
        """Each step of the iterator computes one piece; the last gives all."""
        rows = on_device(frame.request, frame.terms, self._executor.device)
        computed = frame.stack.forward_in_pieces(rows, frame.call, self._piece_positions)
        done: list[torch.Tensor] = []
        for _ in range(-(-rows.shape[1] // self._piece_positions) - 1):
            with self._timed():
                done.append(next(computed))
            yield None
        with self._timed():
            done.append(next(computed))
            outcome = encode(channels_pb2.HOP_RETURN, frame.call.step, torch.cat(done, dim=1), frame.terms)
        yield outcome
