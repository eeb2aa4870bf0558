"""Repeats of a block are found, averaged and read where a gauge or noise is used again, and stay hidden elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from auditor.attacks.parts.alignment import by_gram, procrustes
from auditor.attacks.repeats import RepeatProbe
from auditor.calibration.base import Dose
from auditor.calibration.history import HistoryInstrument
from auditor.channels import ACCUMULATED_HISTORY
from auditor.evidence.material import Material
from auditor.evidence.reading import read_capture
from auditor.evidence.splits import split_capture
from auditor.plan import Plan, ProbeSettings, StatisticsSettings
from auditor.progress import silent
from auditor.results import plain
from auditor.scorers.history import match, score_history
from auditor.views.base import NotMeasurableError
from auditor.views.history import history_view
from splitwire.v1 import channels_pb2, stack_pb2

pytestmark = pytest.mark.usefixtures("one_thread")

CONTENT = 3.0
SESSION = "5e55107a5e55107a"
REAL, DECOYS, WIDTH, VOCABULARY, DOCUMENTS = 16, 6, 32, 24, 50
PLAN = Plan(
    attacks=("repeats",),
    families=(ACCUMULATED_HISTORY,),
    scope=(ACCUMULATED_HISTORY,),
    statistics=StatisticsSettings(repetitions=1000),
    probe=ProbeSettings(epochs=4, control_coverage_ratio=0.5),
)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """Blocks of one document each that cross `epochs` times; a row is its label's code beside much of its own."""

    epochs: int = 4
    noise: float = 0.0
    gauge: str = "fresh"
    """fresh: a rotation and a permutation a frame; reused: one rotation for all; none: rows as they are."""
    drift: float = 0.0
    """Length of a row that all rows of a frame have in common, and that turns from frame to frame."""


@dataclass
class Wire:
    """A bundle and its truth at once, as a capture reads them."""

    recipe: Recipe
    problems: list[str] = field(default_factory=list)
    records: dict[tuple[str, int], Any] = field(default_factory=dict)
    is_complete: bool = True

    def __post_init__(self) -> None:
        self.documents = [{"id": f"doc-{number}", "member": True} for number in range(DOCUMENTS)]
        self._frames: list[Any] = []
        generator = np.random.default_rng(4)
        weights = 1 / np.arange(1, VOCABULARY + 1)
        codes = generator.normal(size=(VOCABULARY, WIDTH // 2)) / np.sqrt(WIDTH // 2)
        labels = generator.choice(VOCABULARY, size=(DOCUMENTS, REAL), p=weights / weights.sum())
        own = CONTENT * generator.normal(size=(*labels.shape, WIDTH // 2)) / np.sqrt(WIDTH // 2)
        clean = np.concatenate([codes[labels], own], axis=-1)
        turn = _rotation(generator)
        for _ in range(self.recipe.epochs):
            for document in generator.permutation(DOCUMENTS):
                self._add(document, clean[document], labels[document], turn, generator)

    def _add(
        self, document: int, clean: Floats, labels: NDArray[Any], turn: Floats, generator: np.random.Generator
    ) -> None:
        num_decoys = 0 if self.recipe.gauge == "none" else DECOYS
        rows = np.concatenate([clean, CONTENT * generator.normal(size=(num_decoys, WIDTH)) / np.sqrt(WIDTH)])
        angle = 0.02 * len(self._frames)
        rows[:, :2] += self.recipe.drift * np.array([np.cos(angle), np.sin(angle)])
        order = np.arange(len(rows)) if self.recipe.gauge == "none" else generator.permutation(len(rows))
        turn = _rotation(generator) if self.recipe.gauge == "fresh" else turn
        rows = rows @ turn + self.recipe.noise * generator.normal(size=rows.shape) / np.sqrt(WIDTH)
        label = np.concatenate([labels, generator.choice(VOCABULARY, size=num_decoys)])[order][None].astype(np.int32)
        step = len(self._frames) + 1
        header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=step)
        header.compute_mode = stack_pb2.COMPUTE_MODE_TRAIN
        tensor = torch.from_numpy(rows[order][None].astype(np.float32))
        digest = f"{step:064x}"
        self._frames.append(SimpleNamespace(session_hash=SESSION, header=header, tensor=tensor, message_digest=digest))
        self.records[(SESSION, step)] = SimpleNamespace(
            forward_digest=digest,
            real=(order < REAL)[None],
            order=order[None].astype(np.int32),
            token=label,
            label=label,
            document=np.full(label.shape, document, np.int32),
        )

    def frames(self, hop: Any, session: str | None = None) -> Iterator[Any]:
        del session
        return iter(self._frames if hop == channels_pb2.HOP_FORWARD else [])

    def messages(self, hop: Any = None, session: str | None = None) -> Iterator[Any]:
        del hop, session
        return iter(())


def _rotation(generator: np.random.Generator) -> Floats:
    return np.asarray(np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0])


@pytest.fixture
def material(tmp_path: Path) -> Callable[..., Material]:
    """material(gauge=..., noise=...) -> what an audit of such a history works on."""

    def make(**changes: Any) -> Material:
        wire, folder = Wire(Recipe(**changes)), tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        capture = read_capture([wire], [wire], compute_modes=["train"], folder=folder)
        return Material(capture, split_capture(capture, PLAN.split), [wire], [wire])

    return make


@pytest.fixture
def score(material: Callable[..., Material]) -> Callable[..., dict[str, Any]]:
    """score(gauge=..., noise=...) -> the result of the attack on such a history."""

    def run(**changes: Any) -> dict[str, Any]:
        result = score_history(RepeatProbe(), material(**changes), ACCUMULATED_HISTORY, PLAN, silent)
        return dict(plain(result))

    return run


def _effect(result: dict[str, Any]) -> dict[str, Any]:
    return dict(next(check for check in result["checks"] if check["metric"] == "token_top1_effect"))


def test_a_reused_gauge_is_found_and_averaging_reads_what_single_frames_do_not(score: Callable[..., Any]) -> None:
    """Noise longer than a code hides tokens in one frame; five frames in one gauge give them back."""
    result = score(gauge="reused", noise=1.6, epochs=5)
    assert result["details"]["repeats_found_ratio"] > 0.5
    assert _effect(result)["value"] > result["details"]["single_effect_pp"] + 3
    assert _effect(result)["state"] == "fail"
    assert result["twin"]["lower_pp"] < 1


def test_repeats_without_fresh_noise_are_found_behind_fresh_gauges(score: Callable[..., Any]) -> None:
    """Norms and Gram matrices survive rotation, permutation and other decoys."""
    result = score(gauge="fresh", noise=0.002)
    assert result["details"]["repeats_found_ratio"] > 0.75
    assert result["details"]["links_right_ratio"] > 0.95
    assert result["details"]["frames_averaged_mean"] > 2


def test_fresh_gauges_and_fresh_noise_leave_repeats_hidden(score: Callable[..., Any]) -> None:
    """The negative control: no repeat is found, no leak is claimed, and every planted history is found."""
    result = score(gauge="fresh", noise=9.0)
    assert result["details"]["repeats_found_ratio"] < 0.1
    assert _effect(result)["state"] != "fail"
    assert _effect(result)["lower"] < 1
    assert [control["found"] for control in result["controls"]] == [True, True, True]


def test_without_a_gauge_noise_averages_out_of_sequences(score: Callable[..., Any]) -> None:
    """The stack of real layers: rows stay where they are, so every repeat helps."""
    result = score(gauge="none", noise=1.6, epochs=5)
    assert not result["details"]["has_gauge"]
    assert result["details"]["repeats_found_ratio"] > 0.8
    assert _effect(result)["value"] > result["details"]["single_effect_pp"] + 3


def test_what_all_rows_of_a_frame_share_does_not_hide_repeats(material: Callable[..., Material]) -> None:
    """An encoder that learns moves it on, so that frames near in time are more alike than those of one block."""
    given = material(gauge="none", noise=1.0, epochs=2, drift=12.0)
    view, key = history_view(given.capture, given.splits, PLAN)
    assert match(RepeatProbe().find(view, silent), key).found_ratio > 0.8


def test_a_block_is_scored_once_however_often_it_crossed(score: Callable[..., Any]) -> None:
    """Repeats are not more evidence."""
    few, many = score(epochs=2), score(epochs=3)
    assert few["num_rows"] == many["num_rows"]
    assert few["num_documents"] == many["num_documents"]


def test_text_that_crossed_once_is_not_measured_and_the_reason_says_what_to_do(score: Callable[..., Any]) -> None:
    """Never a pass."""
    with pytest.raises(NotMeasurableError, match="record two epochs or more"):
        score(epochs=1)


def test_the_alignment_undoes_a_rotation_and_a_permutation() -> None:
    """Rows and rotation come back to rounding; noise alone aligns to nothing that is like it."""
    generator = np.random.default_rng(1)
    first = generator.normal(size=(100, WIDTH)) * generator.uniform(0.5, 2, size=(100, 1))
    turn, order = _rotation(generator), generator.permutation(100)
    np.testing.assert_allclose(procrustes(first @ turn, first), turn, atol=1e-9)
    found = by_gram(first, (first @ turn)[order])
    assert found is not None
    np.testing.assert_allclose(found.onto_first((first @ turn)[order]), first, atol=1e-9)
    np.testing.assert_allclose(found.onto_second(first), (first @ turn)[order][found.columns], atol=1e-9)
    other = by_gram(first, generator.normal(size=(100, WIDTH)))
    assert other is not None
    assert other.score < 1.5
    assert found.score > 5


def test_the_instrument_reads_the_same_without_a_dose_and_at_a_dose_of_zero(
    material: Callable[..., Material],
) -> None:
    """Number for number, and a full dose of token codes is found."""
    instrument = HistoryInstrument(RepeatProbe(), material(epochs=2, noise=9.0), ACCUMULATED_HISTORY, PLAN)
    undosed = instrument.read(None, 1)
    assert instrument.read(Dose(0.0, 1.0, "coordinate"), 1) == undosed
    assert not undosed[1].detected
    assert instrument.read(Dose(1.0, 1.0, "coordinate"), 1)[1].detected
