"""What every attack says of itself, and what it hands to its scorer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from auditor.arrays import Integers
from auditor.progress import Progress, Tick

Question = Literal[
    "support",
    "partition",
    "partition_rows",
    "linkage",
    "token",
    "cross_token",
    "sweep",
    "response",
    "history",
    "trajectory",
    "metadata",
    "reaction",
    "membership",
    "frame_membership",
    "prompt",
    "training_text",
    "model",
]


@dataclass(frozen=True)
class Assumes:
    """What an attacker has beside the captured bytes, so that results can be told apart by it."""

    known_plaintext: bool = False
    """The answers (tokens, labels, which rows are real) of the documents that the plan gives to train."""
    public_weights: bool = False
    """The weights of the public model."""
    auxiliary_text: bool = False
    """Text that is not of the run, or candidate texts."""


class Attack(Protocol):
    """One row of the registry. `run` takes the view of its question and gives that question's answer."""

    @property
    def name(self) -> str:
        """In plans and results."""
        ...

    @property
    def question(self) -> Question:
        """Decides the view and the scorer."""
        ...

    @property
    def families(self) -> tuple[str, ...]:
        """Channels on which it runs."""
        ...

    @property
    def knowledge(self) -> str:
        """What the attacker is assumed to know; goes into the result."""
        ...

    @property
    def assumes(self) -> Assumes:
        """The same in a form that can be compared."""
        ...

    @property
    def paper(self) -> str:
        """Where the method comes from."""
        ...

    def run(self, view: Any, settings: Any, progress: Progress) -> Any:
        """Attacks one view."""
        ...


@dataclass(frozen=True, eq=False)
class UnitScores:
    """One way to score units [U]. Which way counts is chosen on select, by the scorer."""

    name: str
    scores: NDArray[np.float64]


class TokenArm(Protocol):
    """One probe: made by the attack, fitted (perhaps beside others), then read by the scorer.

    `classes` [C] are the tokens that it can name. Arms that train together share an attribute `group`: to fit one of
    them fits them all, and nobody asks the others. An arm that the plan may train for fewer epochs has `epochs`.
    """

    name: str
    classes: Integers

    def fit(self, tick: Tick) -> None:
        """Trains the arm. Arms share no state that changes, so several may be fitted at once."""
        ...

    def log_probabilities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Chunks of (positions among the view's score rows, log-probabilities [n, C])."""
        ...
