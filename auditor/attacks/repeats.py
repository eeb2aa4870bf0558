"""Finds frames that carry the same block, averages their noise away, and pools what probes say of them.

An attacker with memory, who needs no label to find repeats. Candidates come from three invariants of a frame: sorted
norms and Gram spectrum; mean and second moment of its rows (the same when a rotation was used again); norms that two
frames have in common. Each pair of candidates is aligned (alignment.py) and believed when it scores far above what
pairs of frames score at large. Where no rotation stands between two frames they are compared without their mean row,
which is much the same in all frames and drifts as the encoder learns. Arms, each for several probes:

    averaged   the probe on rows that are the mean over all repeats that were found
    pooled     the probe on single rows; its log-probabilities are summed over the repeats of a row
    single     the probe on single rows, to compare with

Fresh noise of enough size on every frame keeps repeats from being found; a gauge that is used again, or noise that is
not, gives them away.

Shapes: F frames, R rows of a frame, D width, M rows of the view, S score rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Integers, Rows
from auditor.attacks.base import Assumes, Question, TokenArm
from auditor.attacks.latent_probe import LatentProbe
from auditor.attacks.linear_probe import LinearProbe
from auditor.attacks.parts.alignment import (
    Alignment,
    by_gram,
    frame_pairs,
    gram_correlation_of_seeds,
    in_place,
    same_gauge,
    unit,
)
from auditor.channels import ACCUMULATED_HISTORY
from auditor.plan import ProbeSettings
from auditor.progress import Progress, Tick
from auditor.views.base import FloatArray
from auditor.views.history import HistoryView

AVERAGED, POOLED, SINGLE = "averaged", "pooled", "single"
_NUM_NULL_PAIRS = 200
_FAR_ERRORS = 5.0  # robust standard errors above the median of pairs at large
_SEED_ERRORS = 1.0
_NUM_NEIGHBOURS = 4  # candidates of a frame by each invariant
_NUM_COMMON_NORMS = 3


@dataclass(frozen=True, eq=False)
class Repeats:
    """What was found: rows [M, D] averaged over their repeats, how many each averages [M], pairs of linked rows [L, 2]
    in both directions, and pairs of frames [P, 2].
    """

    averaged: Rows
    count: Integers
    links: Integers
    pairs: Integers


class RepeatProbe:
    """Probes on averaged rows, and probes pooled over repeats."""

    name = "repeats"
    question: Question = "history"
    families: tuple[str, ...] = (ACCUMULATED_HISTORY,)
    knowledge = "forward rows of every frame, in order; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "Procrustes alignment of frames by their Gram matrices, and averaging"

    def find(self, view: HistoryView, progress: Progress) -> Repeats:
        """The repeats in these rows; no label is looked at."""
        return _Finder(view).find(progress)

    def run(self, view: HistoryView, settings: ProbeSettings, progress: Progress) -> list[TokenArm]:
        """The arms with memory, not yet fitted."""
        arms = self.arms(view, self.find(view, progress), settings, progress)
        return [arm for arm in arms if not arm.name.startswith(SINGLE)]

    def arms(self, view: HistoryView, repeats: Repeats, settings: ProbeSettings, progress: Progress) -> list[TokenArm]:
        """All arms, on repeats found before."""
        averaged = _probes(view.with_rows(repeats.averaged), settings, progress)
        for arm in averaged:
            arm.name = f"{AVERAGED}/{arm.name}"
        scored = np.isin(repeats.links[:, 0], view.score_rows)
        needed = np.unique(np.concatenate([view.score_rows, repeats.links[scored, 1]]))
        single = _probes(replace(view, score_rows=needed), settings, progress)
        pooled = [_Pooled(POOLED, arm, view.score_rows, needed, repeats.links[scored]) for arm in single]
        alone = [_Pooled(SINGLE, arm, view.score_rows, needed, repeats.links[:0]) for arm in single]
        return [*averaged, *pooled, *alone]


def _probes(view: HistoryView, settings: ProbeSettings, progress: Progress) -> list[TokenArm]:
    """The linear probe and the first trained one of the plan."""
    linear = LinearProbe().run(view, settings, progress)
    for arm in linear:
        arm.name = f"linear/{arm.name}"
    trained = LatentProbe().run(view, replace(settings, probes=settings.probes[:1], restarts=1), progress)
    return [*linear, *trained]


class _Pooled:
    """Sums the log-probabilities of an arm over the rows linked with each score row. Two of them may share an arm."""

    def __init__(self, kind: str, arm: TokenArm, score_rows: Integers, needed: Integers, links: Integers) -> None:
        self.name, self.classes, self._arm = f"{kind}/{arm.name}", arm.classes, arm
        self.epochs: int = getattr(arm, "epochs", 0)
        self._fits = kind == POOLED
        targets = np.concatenate([np.arange(len(score_rows)), np.searchsorted(score_rows, links[:, 0])])
        sources = np.concatenate([np.searchsorted(needed, score_rows), np.searchsorted(needed, links[:, 1])])
        order = np.argsort(sources, kind="stable")
        self._targets, self._sources = targets[order], sources[order]
        self._num_rows = len(score_rows)

    def fit(self, tick: Tick) -> None:
        """Fits the arm, once for all that share it."""
        if self._fits:
            self._arm.fit(tick)

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Sums over all score rows at once."""
        total = np.zeros((self._num_rows, len(self.classes)), np.float32)
        for positions, values in self._arm.log_probabilities():
            place = np.full(int(positions.max()) + 1, -1)
            place[positions] = np.arange(len(positions))
            mine = np.isin(self._sources, positions)
            np.add.at(total, self._targets[mine], values[place[self._sources[mine]]])
        yield np.arange(self._num_rows), total


class _Finder:
    """Finds and averages the repeats of one view."""

    def __init__(self, view: HistoryView) -> None:
        self._view = view
        self._frames = [
            np.asarray(view.rows[start:end], dtype=np.float64)
            for start, end in zip(view.offsets[:-1], view.offsets[1:], strict=True)
        ]
        self._centred = [frame - frame.mean(0) for frame in self._frames]
        self._generator = np.random.default_rng([view.seed, 5])

    def find(self, progress: Progress) -> Repeats:
        view = self._view
        total, count = view.rows.astype(np.float64), np.ones(len(view.rows), np.int64)
        links: list[Integers] = []
        pairs = self._candidates()
        align, believed = self._aligner(pairs), []
        for number, (one, other) in enumerate(pairs):
            if number % 64 == 0:
                progress("aligning frames", number, len(pairs))
            found = align(one, other)
            if found is None:
                continue
            believed.append((one, other))
            first = view.offsets[one] + np.flatnonzero(found.kept)
            second = view.offsets[other] + found.columns[found.kept]
            total[first] += found.onto_first(self._frames[other])[found.kept]
            total[second] += found.onto_second(self._frames[one])[found.kept]
            count[first] += 1
            count[second] += 1
            links += [np.stack([first, second], 1), np.stack([second, first], 1)]
        averaged = (total / count[:, None]).astype(np.float32)
        return Repeats(
            averaged,
            count,
            np.concatenate([np.zeros((0, 2), np.int64), *links]),
            np.array(believed, np.int64).reshape(-1, 2),
        )

    def _candidates(self) -> list[tuple[int, int]]:
        """Pairs of frames of one length that an invariant says are alike."""
        candidates: dict[int, set[int]] = {number: set() for number in range(len(self._frames))}
        lengths = np.array([len(frame) for frame in self._frames])
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            if len(members) > 1:
                for near_FK in self._neighbours(members):
                    for number, near in zip(members, near_FK, strict=True):
                        candidates[int(number)].update(int(members[place]) for place in near if place >= 0)
        return frame_pairs(candidates)

    def _neighbours(self, members: Integers) -> Iterator[Integers]:
        """Nearest of these frames [F, K] as they are, and by each invariant that the gauge leaves alone."""
        yield _nearest(unit(np.stack([self._centred[n] for n in members])).reshape(len(members), -1))
        if not self._view.has_gauge:
            return
        frames_FRD = np.stack([self._frames[n] for n in members])
        norms_FR = np.sort(np.linalg.norm(frames_FRD, axis=2), axis=1)
        spectrum = np.linalg.svd(frames_FRD, compute_uv=False)
        yield _nearest(_standard(np.concatenate([norms_FR, spectrum], axis=1)))
        moments = np.einsum("frd,fre->fde", frames_FRD, frames_FRD).reshape(len(frames_FRD), -1)
        yield _nearest(_standard(np.concatenate([frames_FRD.mean(1), moments], axis=1)))
        yield _most_common_norms(norms_FR)

    def _aligner(self, pairs: list[tuple[int, int]]) -> Callable[[int, int], Alignment | None]:
        """A function that aligns two frames, or gives None where they score as any two frames do."""
        null, frames, centred = self._null_pairs(pairs), self._frames, self._centred
        ways = (in_place, same_gauge) if self._view.has_gauge else (in_place,)
        limits = [_far([way(centred[one], centred[other]).score for one, other in null], _FAR_ERRORS) for way in ways]

        def align_plain(one: int, other: int) -> Alignment | None:
            for way, limit in zip(ways, limits, strict=True):
                found = _above(way(centred[one], centred[other]), limit)
                if found is not None:
                    return found.widened(centred[one], centred[other])
            return None

        if not self._view.has_gauge:
            return align_plain
        seed_limit = _far([gram_correlation_of_seeds(frames[one], frames[other]) for one, other in null], _SEED_ERRORS)
        aligned = [by_gram(frames[one], frames[other]) for one, other in null]
        gram_limit = _far([found.score for found in aligned if found is not None], _FAR_ERRORS)

        def align(one: int, other: int) -> Alignment | None:
            plainly = align_plain(one, other)
            if plainly is not None:
                return plainly
            found = _above(by_gram(frames[one], frames[other], seed_limit=seed_limit), gram_limit)
            return found and found.widened(frames[one], frames[other])

        return align

    def _null_pairs(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Pairs of frames of one length at large: most carry nothing in common."""
        if not pairs:
            return []
        ends = np.array(pairs)
        first = self._generator.integers(0, len(ends), _NUM_NULL_PAIRS)
        second = self._generator.integers(0, len(ends), _NUM_NULL_PAIRS)
        drawn = zip(ends[first, 0].tolist(), ends[second, 1].tolist(), strict=True)
        frames = self._frames
        return [(one, other) for one, other in drawn if one != other and len(frames[one]) == len(frames[other])]


def _nearest(features_FK: FloatArray) -> Integers:
    """The nearest other frames [F, K] by Euclidean distance."""
    square = (features_FK**2).sum(1)
    distance_FF = square[:, None] + square - 2 * features_FK @ features_FK.T
    np.fill_diagonal(distance_FF, np.inf)
    count = min(_NUM_NEIGHBOURS, len(features_FK) - 1)
    return np.argpartition(distance_FF, count - 1, axis=1)[:, :count]


def _most_common_norms(norms_FR: FloatArray) -> Integers:
    """Frames [F, K] that have the most norms nearly in common, -1 where there are fewer."""
    num_frames, num_rows = norms_FR.shape
    flat = norms_FR.reshape(-1)
    order = np.argsort(flat, kind="stable")
    frame_in_order = order // num_rows
    votes_FF = np.zeros((num_frames, num_frames), np.float32)
    for step in range(1, _NUM_COMMON_NORMS + 1):
        one, other = frame_in_order[:-step], frame_in_order[step:]
        gap = flat[order][step:] - flat[order][:-step]
        weight = 1.0 / (1.0 + gap / max(float(np.median(gap)), 1e-12)) ** 2
        np.add.at(votes_FF, (one, other), weight)
        np.add.at(votes_FF, (other, one), weight)
    np.fill_diagonal(votes_FF, -1)
    count = min(_NUM_NEIGHBOURS, num_frames - 1)
    near = np.argpartition(-votes_FF, count - 1, axis=1)[:, :count]
    return np.where(np.take_along_axis(votes_FF, near, 1) > 0, near, -1)


def _standard(features: FloatArray) -> FloatArray:
    spread = features.std(0)
    return np.asarray((features - features.mean(0)) / np.where(spread > 0, spread, 1.0))


def _far(scores: list[float], errors: float) -> float:
    """This many robust standard errors above the median of the scores; never reached without scores."""
    if not scores:
        return float("inf")
    median = float(np.median(scores))
    return median + errors * 1.4826 * float(np.median(np.abs(np.array(scores) - median)))


def _above(found: Alignment | None, limit: float) -> Alignment | None:
    return found if found is not None and found.score > limit else None
