"""How the gram surrogate of a session takes frames before and after its training (membership_property).

The architecture is public and the node has its own weights, so whoever holds them can ask what any frame does to them.

Shapes: F frames, C candidates, R rows, D width, P parameters of the surrogate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from auditor.arrays import Integers, Rows
from auditor.attacks.parts.measures import mean_by_owner
from auditor.progress import Progress, silent
from auditor.views.base import FloatArray
from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2

_GRAM_FIELDS = ("width", "num_experts", "num_layers", "radial", "sign_invariant")
_PARAMETER, _SECOND = "parameter.", "optimizer.exp_avg_sq."
_BATCH_FRAMES = 64
_SMALLEST = 1e-12
State = Mapping[str, NDArray[Any]]


def parameters_of(state: State) -> dict[str, NDArray[Any]]:
    """The weights of a snapshot by their own names, without the moments."""
    return {name.removeprefix(_PARAMETER): state[name] for name in state if name.startswith(_PARAMETER)}


def gram_network(facts: Mapping[str, Any], state: State) -> GramNetwork:
    """The surrogate of a snapshot. KeyError, RuntimeError or TypeError where the tensors do not fit the facts."""
    settings = stack_pb2.GramSettings(**{name: facts[name] for name in _GRAM_FIELDS})
    network = GramNetwork(settings, torch.Generator().manual_seed(0))
    network.load_state_dict({name: torch.from_numpy(value) for name, value in parameters_of(state).items()})
    return network


class Surrogate:
    """A session's surrogate at its first and its last snapshot."""

    def __init__(self, facts: Mapping[str, Any], start: State, end: State) -> None:
        """As `gram_network` where the tensors do not fit."""
        self._first, self._last = gram_network(facts, start), gram_network(facts, end)
        self._shapes = {name: parameter.shape for name, parameter in self._last.named_parameters()}
        self._end_P = _flat(dict(self._last.named_parameters()))
        self._way_P = self._end_P - _flat(dict(self._first.named_parameters()))
        second = [end.get(_SECOND + name) for name in self._shapes]
        moments = [np.ones(1) if one is None else np.asarray(one).reshape(-1) for one in second]
        self._square_P = np.concatenate(
            [np.broadcast_to(m, s.numel()) for m, s in zip(moments, self._shapes.values(), strict=True)]
        )

    def reactions(
        self, frames: Sequence[Rows], moved: FloatArray | None = None, progress: Progress = silent
    ) -> FloatArray:
        """Log change, residual after and before (log, relative), log length of the residual's gradient, and its cosine
        with the way that the weights went [F, 5]. `moved` [F, P] is added to the last weights, for each frame its own.
        """
        found = np.zeros((len(frames), 5))
        end_FP = self._end_P.expand(len(frames), -1)
        if moved is not None:
            end_FP = end_FP + torch.from_numpy(moved).float()
        slope = torch.func.vmap(torch.func.grad(self._loss, has_aux=True))
        for numbers, rows_BRD in _batches(frames, progress):
            with torch.no_grad():
                before_BRD = self._first(rows_BRD)
            slope_BP, after_BRD = slope(end_FP[numbers], rows_BRD)
            size_B = rows_BRD.norm(dim=(1, 2)).clamp_min(_SMALLEST)
            apart = (after_BRD - before_BRD, after_BRD - rows_BRD, before_BRD - rows_BRD)
            lengths = [part_BRD.norm(dim=(1, 2)) / size_B for part_BRD in apart] + [slope_BP.norm(dim=1)]
            scale_B = (slope_BP.norm(dim=1) * self._way_P.norm()).clamp_min(_SMALLEST)
            columns = [length.clamp_min(_SMALLEST).log() for length in lengths] + [slope_BP @ self._way_P / scale_B]
            found[numbers] = torch.stack(columns, dim=1).detach().double().numpy()
        return found

    def own_steps(self, frames: Sequence[Rows], owner: Integers, count: int) -> FloatArray:
        """Where one more optimizer step on each of `count` candidates alone would move the last weights [C, P], as far
        as the whole training moved them. `owner` [F] is the candidate of a frame.

        Down the gradient of its residual, each weight at the pace that AdamW's second moment gives it. What the steps
        of all candidates have in common is taken out, and so is what changes the mean residual: it tells nobody apart.
        """
        slope_FP = np.zeros((len(frames), len(self._end_P)))
        slope = torch.func.vmap(torch.func.grad(self._loss, has_aux=True), in_dims=(None, 0))
        for numbers, rows_BRD in _batches(frames, silent):
            slope_FP[numbers] = slope(self._end_P, rows_BRD)[0].double().numpy()
        slope_CP = mean_by_owner(slope_FP, owner, count)
        mean_P, pace_P = slope_CP.mean(0), 1 / (np.sqrt(self._square_P) + _SMALLEST)
        step_CP = -(slope_CP - mean_P) * pace_P
        common_P = mean_P * pace_P
        step_CP -= np.outer(step_CP @ mean_P / max(float(common_P @ mean_P), _SMALLEST), common_P)
        length_C1 = np.maximum(np.linalg.norm(step_CP, axis=1, keepdims=True), _SMALLEST)
        return np.asarray(float(self._way_P.norm()) * step_CP / length_C1)

    def _loss(self, weights_P: torch.Tensor, rows_RD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Half the mean squared residual of a row, and the rows that come out."""
        parts = torch.split(weights_P, [shape.numel() for shape in self._shapes.values()])
        weights = {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        after_RD = torch.func.functional_call(self._last, weights, (rows_RD[None],))[0]
        return 0.5 * (after_RD - rows_RD).square().sum() / len(rows_RD), after_RD


def _flat(parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])


def _batches(frames: Sequence[Rows], progress: Progress) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Numbers of frames of one shape, a few at a time, and their rows [B, R, D]."""
    by_length: dict[int, list[int]] = {}
    for number, frame in enumerate(frames):
        by_length.setdefault(len(frame), []).append(number)
    done = 0
    for numbers in by_length.values():
        for start in range(0, len(numbers), _BATCH_FRAMES):
            progress("candidates", done, len(frames))
            part = numbers[start : start + _BATCH_FRAMES]
            yield part, torch.from_numpy(np.stack([np.asarray(frames[n], dtype=np.float32) for n in part]))
            done += len(part)
