"""Plants a leak of known size into a copy of a view, to show that an attack would have found it.

    plant             a token's code into rows
    plant_norms       what is real into norms
    plant_zeros       what is real into zeros of the gradient
    plant_direction   what is real into the direction of rows
    plant_resent      earlier real rows in the place of decoys
    plant_delay       a property of steps into the trusted node's own time
    plant_bytes       the same into the length of FORWARD

The carriers are the first round(coverage * N) of one fixed permutation of a seed (`covered`), and what is put into one
does not depend on how many there are: larger doses contain smaller ones. A dose of zero gives the same values, bit for
bit. Labels and answers are never touched.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Flags, Integers, Rows
from auditor.evidence.frames import row_norms
from auditor.evidence.rows import copy_rows, mapped_rows, places
from auditor.views.base import FloatArray
from auditor.views.linkage import LinkageView
from auditor.views.metadata import MetadataView

_SMALLEST = 1e-30
DELAY_COLUMNS = ("trusted_loss_us", "trusted_before_us")
"""The trusted node's own time, by choice: a session without BACKWARD has only what comes before FORWARD."""


def covered(carriers: Integers, coverage_ratio: float, seed: int) -> Integers:
    """The first round(coverage * N) of one fixed permutation of these carriers [N], in ascending order."""
    order = np.random.default_rng([seed, 1]).permutation(carriers)
    return np.sort(order[: round(coverage_ratio * len(carriers))])


def plant(
    rows: Rows,
    tokens: NDArray[np.int64],
    *,
    coverage_ratio: float,
    amplitude_ratio: float,
    seed: int,
    offsets: Integers | None = None,
) -> Rows:
    """A dosed copy of rows [M, W]. Rows without a token (-1) are never dosed.

    One fixed random unit code a token. A chosen row becomes norm * normalise(sqrt(1 - a^2) * unit + a * code): its norm
    stays, its direction now tells the token. With the offsets of the frames the codes of every frame are turned by a
    rotation of its own, so that only what a rotation leaves alone tells it.
    """
    dosed = copy_rows(rows)
    candidates = np.flatnonzero(tokens >= 0)
    chosen = covered(candidates, coverage_ratio, seed) if amplitude_ratio > 0 else candidates[:0]
    if not len(chosen):
        return dosed
    codes, code_of_row = _codes(tokens, rows.shape[1], seed)
    turned = None if offsets is None else _turned(codes, code_of_row, chosen, offsets, seed)
    for part in places(len(chosen), rows.shape[1]):
        row_codes = codes[code_of_row[chosen[part]]] if turned is None else turned[part]
        dosed[chosen[part]] = _leaning(rows[chosen[part]], row_codes, amplitude_ratio)
    return dosed


def plant_norms(
    norm: FloatArray, real: Flags, *, coverage_ratio: float, amplitude_ratio: float, seed: int
) -> FloatArray:
    """Norms [U] of which the covered real units are longer, by the amplitude in standard deviations of log norm."""
    chosen = covered(np.flatnonzero(real & (norm > 0)), coverage_ratio, seed)
    planted = norm.copy()
    if amplitude_ratio > 0 and len(chosen):
        spread = float(np.log(norm[norm > 0]).std()) or 1.0
        planted[chosen] *= np.exp(amplitude_ratio * spread)
    return planted


def plant_zeros(norm: FloatArray, real: Flags, group: Integers, *, coverage_ratio: float, seed: int) -> FloatArray:
    """Norms [U] of which the covered groups have zeros exactly at their decoys."""
    chosen = np.isin(group, covered(np.unique(group), coverage_ratio, seed))
    return np.where(chosen, np.where(real, np.maximum(norm, _SMALLEST), 0.0), norm)


def plant_resent(view: LinkageView, real: Flags, *, coverage_ratio: float, seed: int) -> LinkageView:
    """A copy in which the covered decoys are real rows of earlier frames, sent again and turned by frame.

    Turning keeps norms and inner products but for the rounding of float32, as with a row that is sent again in earnest.
    """
    sources = np.flatnonzero(real)[np.argsort(view.group[real], kind="stable")]
    decoys = np.flatnonzero(~real)
    num_earlier = np.searchsorted(view.group[sources], view.group[decoys])
    decoys, num_earlier = decoys[num_earlier > 0], num_earlier[num_earlier > 0]
    drawn = sources[(np.random.default_rng([seed, 2]).random(len(decoys)) * num_earlier).astype(np.int64)]
    kept = np.isin(decoys, covered(decoys, coverage_ratio, seed))
    rows, norm = copy_rows(view.rows), view.norm.copy()
    decoys, drawn = decoys[kept], drawn[kept]
    order = np.argsort(view.group[decoys], kind="stable")
    for of_frame in np.split(order, np.flatnonzero(np.diff(view.group[decoys[order]])) + 1):
        frame = view.group[decoys[of_frame[:1]]]
        turned = _reflected(view.rows[drawn[of_frame]], np.random.default_rng([seed, 3, *frame]))
        rows[decoys[of_frame]], norm[decoys[of_frame]] = turned, row_norms(turned)
    return replace(view, rows=rows, norm=norm)


def plant_direction(
    rows: Rows,
    real: Flags,
    *,
    coverage_ratio: float,
    amplitude_ratio: float,
    seed: int,
    num_parts: int = 1,
    group: Integers | None = None,
) -> Rows:
    """A copy of rows [U, W] in which the covered real rows lean to one direction, with the norms that they had.

    `num_parts` equal parts of a row get the same direction each. With groups, each group has a direction of its own.
    """
    planted = copy_rows(rows)
    chosen = covered(np.flatnonzero(real), coverage_ratio, seed) if amplitude_ratio > 0 else np.zeros(0, np.int64)
    place = np.zeros(len(chosen), np.int64) if group is None else np.unique(group[chosen], return_inverse=True)[1]
    width = rows.shape[1] // num_parts
    size = (int(place.max(initial=0)) + 1, width)
    directions = _unit(np.random.default_rng([seed, 4]).standard_normal(size).astype(np.float32))
    for start in range(0, width * num_parts, width):
        part = planted[:, start : start + width]
        for piece in places(len(chosen), width):
            part[chosen[piece]] = _leaning(part[chosen[piece]], directions[place[piece]], amplitude_ratio)
    return planted


def delay_column(view: MetadataView) -> str:
    """The first delay column that the view has; empty where it has none."""
    return next((name for name in DELAY_COLUMNS if name in view.names), "")


def spread_us(view: MetadataView) -> float:
    """Half-width of the delay column: from its median to its 84 % quantile; 0 where it is not there."""
    column = delay_column(view)
    if not column:
        return 0.0
    values = view.values[:, list(view.names).index(column)]
    return float(np.nanquantile(values, 0.8413) - np.nanmedian(values))


def plant_delay(view: MetadataView, where: Flags, microseconds: float) -> MetadataView:
    """A copy in which the trusted node takes longer in some steps [S]."""
    return _added(view, delay_column(view), where, microseconds)


def plant_bytes(view: MetadataView, where: Flags, num_bytes: float) -> MetadataView:
    """A copy in which FORWARD is longer in some steps [S]."""
    return _added(view, "forward_bytes", where, num_bytes)


def _codes(tokens: Integers, width: int, seed: int) -> tuple[Rows, Integers]:
    """Unit codes [C, W], and the code of every row [M], -1 where a row has no token."""
    candidates = np.flatnonzero(tokens >= 0)
    classes, index = np.unique(tokens[candidates], return_inverse=True)
    codes = _unit(np.random.default_rng([seed, 2]).standard_normal((len(classes), width)).astype(np.float32))
    code_of_row = np.full(len(tokens), -1)
    code_of_row[candidates] = index.reshape(-1)
    return codes, code_of_row


def _turned(codes: Rows, code_of_row: Integers, chosen: Integers, offsets: Integers, seed: int) -> Rows:
    """The codes [n, W] of the chosen rows, those of every frame turned by one rotation drawn for that frame."""
    turned = mapped_rows((len(chosen), codes.shape[1]))
    for frame, (start, end) in enumerate(itertools.pairwise(offsets)):
        first, last = np.searchsorted(chosen, (start, end))
        if first == last:
            continue
        names = np.unique(code_of_row[start:end])
        names = names[names >= 0]
        image = _rotated(codes[names], np.random.default_rng([seed, 3, frame]))
        turned[first:last] = image[np.searchsorted(names, code_of_row[chosen[first:last]])]
    return turned


def _reflected(rows: Rows, generator: np.random.Generator) -> Rows:
    """Rows [n, W] after two random reflections: a rotation that does not depend on which rows there are."""
    for mirror in _unit(generator.standard_normal((2, rows.shape[1])).astype(np.float32)):
        rows = rows - 2 * (rows @ mirror)[:, None] * mirror
    return rows


def _rotated(vectors: Rows, generator: np.random.Generator) -> Rows:
    """Where a random rotation takes vectors [n, W]: their inner products stay, their directions are uniform.

    Only the image of what they span is drawn, which costs W n^2 rather than W^3.
    """
    basis, weights = np.linalg.qr(vectors.T.astype(np.float64))
    drawn, triangle = np.linalg.qr(generator.standard_normal(basis.shape))
    drawn = drawn * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return np.asarray((drawn @ weights).T, np.float32)


def _leaning(rows: Rows, directions: Rows, amplitude_ratio: float) -> Rows:
    """Rows [n, W] of the norms that they have, with so much of unit directions [n, W] in their own."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    keep, lean = np.float32(np.sqrt(1 - amplitude_ratio**2)), np.float32(amplitude_ratio)
    return np.asarray(norm * _unit(keep * _unit(rows) + lean * directions))


def _unit(rows: Rows) -> Rows:
    length: Rows = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return rows / length


def _added(view: MetadataView, column: str, where: Flags, amount: float) -> MetadataView:
    values = view.values.copy()
    values[where, list(view.names).index(column)] += amount
    return view.with_values(values)
