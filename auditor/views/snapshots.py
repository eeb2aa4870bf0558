"""What changed between two snapshots of a node's state, in a size that does not grow with the model.

Of every trained tensor: the change of the weights, and the mean gradient and mean squared gradient that AdamW's moments
give away: m' = b^n m + (1 - b^n) g over n steps, so g is known exactly for n = 1 and as a weighted mean else. Large
tensors are sketched: every column is the sum of some coordinates with signs, drawn from the plan's seed, so a sketch of
a sum is the sum of sketches. Tensors are read one at a time; what stays in memory is a byte a trained parameter.

Shape: S sketch columns of all tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Integers
from auditor.evidence.material import Material
from auditor.progress import Progress
from auditor.views.base import FloatArray, NotMeasurableError
from splitwire.bundles import SnapshotBundle, SnapshotTensors
from splitwire.errors import BundleError

_SKETCH_COLUMNS = 32
_PARAMETER, _FIRST, _SECOND = "parameter.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."
_BETAS = {"beta1": 0.9, "beta2": 0.999}


def snapshot_bundles(material: Material) -> list[SnapshotBundle]:
    """The complete snapshot bundles among the evidence. NotMeasurableError when there are none."""
    given = [source for source in material.sources if isinstance(source, SnapshotBundle)]
    complete = [bundle for bundle in given if bundle.is_complete]
    if not given:
        raise NotMeasurableError(
            "no snapshots of the untrusted node's state: run `ucn serve --snapshot-every N --snapshot-folder DIR` and "
            "give the session's folder as a further bundle"
        )
    if not complete:
        raise NotMeasurableError("the snapshots are incomplete: end the session, so that its manifest is written")
    return complete


def intervals_of(
    bundle: SnapshotBundle, seed: int, progress: Progress
) -> Iterator[tuple[FloatArray, FloatArray, FloatArray, Integers]]:
    """Sketches of one interval after the other, and the tensor of each column."""
    optimizer = bundle.head.optimizer if bundle.head is not None else {}
    beta1, beta2 = (optimizer.get(name, usual) for name, usual in _BETAS.items())
    sketch: _Sketch | None = None
    for number, (earlier, entry) in enumerate(itertools.pairwise(bundle.entries), start=1):
        progress("reading snapshots", number, len(bundle.entries))
        before, now = bundle.tensors(earlier), bundle.tensors(entry)
        names = _trained(before, now, bundle)
        sketch = sketch or _Sketch([math.prod(now.shapes[_PARAMETER + name]) for name in names], seed)
        count = entry.optimizer_step - earlier.optimizer_step
        kinds = ((_PARAMETER, 1.0), (_FIRST, beta1**count), (_SECOND, beta2**count))
        weights, gradient, squared = (
            sketch.of(_difference(now, before, kind + name, keep, bundle) for name in names) for kind, keep in kinds
        )
        yield weights, gradient, squared, sketch.tensor


def _trained(before: SnapshotTensors, now: SnapshotTensors, bundle: SnapshotBundle) -> list[str]:
    """Names of the parameters. BundleError for tensors that the untrusted node cannot have trained."""
    shapes = [
        {name: shape for name, shape in one.shapes.items() if name.startswith(_PARAMETER)} for one in (before, now)
    ]
    moments = {
        name.partition(prefix)[2]: shape
        for prefix in (_FIRST, _SECOND)
        for name, shape in now.shapes.items()
        if prefix in name
    }
    fit = all(shape == shapes[1].get(_PARAMETER + name) for name, shape in moments.items())
    if not (shapes[0] == shapes[1] and fit and shapes[1]):
        raise _untrained(bundle)
    return sorted(name.removeprefix(_PARAMETER) for name in shapes[1])


def _untrained(bundle: SnapshotBundle) -> BundleError:
    return BundleError(
        f"the snapshots in {bundle.folder} hold other tensors from one to the next, or values that are not finite",
        remedy="snapshot again; an untrusted node wrote them",
    )


def _difference(
    now: SnapshotTensors, before: SnapshotTensors, name: str, keep: float, bundle: SnapshotBundle
) -> FloatArray:
    """What was added since: now - keep * before, over 1 - keep for a moment; moments start from nothing."""
    new = now[name].astype(np.float64).reshape(-1) if name in now else np.zeros(0)
    old = before[name].astype(np.float64).reshape(-1) if name in before else np.zeros(new.shape)
    if len(new) != len(old) or not (np.isfinite(new).all() and np.isfinite(old).all()):
        raise _untrained(bundle)
    return np.asarray((new - keep * old) / (1.0 if keep in (0.0, 1.0) else 1 - keep))


class _Sketch:
    """Signed sums of coordinates: at most so many columns a tensor; a small tensor keeps its coordinates.

    Holds one byte a coordinate: its column, and the sign as the byte's own.
    """

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self._places: list[NDArray[np.int8]] = []
        columns = []
        for number, size in enumerate(sizes):
            generator = np.random.default_rng([seed, number])
            width = min(size, _SKETCH_COLUMNS)
            exact = size <= _SKETCH_COLUMNS
            bucket = np.arange(size) if exact else generator.integers(width, size=size)
            sign = np.ones(size) if exact else generator.choice([-1.0, 1.0], size=size)
            self._places.append(((bucket + 1) * sign).astype(np.int8))
            columns.append(np.full(width, number))
        self.tensor: Integers = np.concatenate(columns).astype(np.int64)

    def of(self, tensors: Iterable[FloatArray]) -> FloatArray:
        """The columns [S] of these tensors, of which one is held at a time."""
        return np.concatenate([_sums(values, place) for values, place in zip(tensors, self._places, strict=True)])


def _sums(values: FloatArray, place: NDArray[np.int8]) -> FloatArray:
    kept = place[: len(values)]
    width = min(len(place), _SKETCH_COLUMNS)
    return np.asarray(np.bincount(np.abs(kept) - 1, weights=np.sign(kept) * values, minlength=width), np.float64)
