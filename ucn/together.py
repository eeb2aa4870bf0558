"""One pass for the CACHED frames of several sessions, and the pieces of one that is long.

A frame that its stack refuses is left out before the pass and answered with the refusal. If the pass itself fails, no
cache has changed, and each frame runs alone: what fails then fails its own session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from splitwire.backbone import MiddleModel, step_together
from splitwire.errors import PeerError
from splitwire.v1 import channels_pb2
from ucn.intake import TensorRequest
from ucn.stacks.base import CachedStep, ForwardCall, SharedStack, Stack
from ucn.steps import Outcome, Terms, compute_forward, encode, on_device


@dataclass(frozen=True)
class CachedFrame:
    """A CACHED frame of one session that may share its pass; `shared` is the same stack."""

    stack: Stack
    shared: SharedStack
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
                begun[number] = frame.shared.begin_cached(on_device(frame.request, frame.terms, device), frame.call)
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


def pieces(frame: CachedFrame, size: int, device: torch.device) -> Iterator[Outcome | None]:
    """Runs a frame `size` positions at a time: each step of the iterator computes one piece, the last gives all."""
    rows = on_device(frame.request, frame.terms, device)
    done: list[torch.Tensor] = []
    num_positions = 0
    for output in frame.shared.forward_in_pieces(rows, frame.call, size):
        done.append(output)
        num_positions += output.shape[1]
        is_last = num_positions == rows.shape[1]
        yield encode(channels_pb2.HOP_RETURN, frame.call.step, torch.cat(done, dim=1), frame.terms) if is_last else None
