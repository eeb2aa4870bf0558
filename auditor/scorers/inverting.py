"""Runs an inversion attack on captured texts, and holds its guesses against what they really are.

A forward row names its own token, a returned row the next one, a gradient either. On the return wire of a generation
the answer is what counts; elsewhere it is the whole text.

Shapes: T positions of one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditor.arrays import Integers
from auditor.attacks import Attack
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parameters import configured
from auditor.channels import FORWARD_ONLY, RESPONSE_SIDE
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.statistics.effects import PairedEffect, most_frequent, paired_differences, paired_effect
from auditor.text_metrics.report import Pair
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import PromptView
from auditor.views.prompt_capture import Grants, PromptKey, prompt_view
from auditor.views.text_keys import UNKNOWN, TextKey
from splitwire.errors import SettingsError


@dataclass(frozen=True, eq=False)
class Captured:
    """An attack with the plan's parameters, the texts that it is given, and their answers."""

    attack: Attack
    view: PromptView
    key: PromptKey

    @property
    def is_training(self) -> bool:
        """Whether the texts are training sequences."""
        return self.attack.question == "training_text"

    @property
    def scores_answers(self) -> bool:
        """Whether the answers alone are scored."""
        return self.view.family == RESPONSE_SIDE and not self.is_training

    @property
    def metric(self) -> str:
        """Name of the check."""
        return "answer_token_effect" if self.scores_answers else "text_token_effect"

    def attacked(
        self, view: PromptView, plan: Plan, progress: Progress, keys: Sequence[TextKey] | None = None
    ) -> Inversion:
        """What the attack makes of this view, which is that of the texts, a changed copy, or one with `keys`."""
        recovered = _run(self.attack, view, plan, progress)
        pairs = _pairs(recovered, self.key.texts if keys is None else keys, self)
        parts = [pair.part("answer" if self.scores_answers else "text") for pair in pairs]
        sizes = [len(true) for _, true in parts]
        scored = Scored(
            np.concatenate([guessed for guessed, _ in parts]),
            np.concatenate([true for _, true in parts]),
            np.repeat(np.arange(len(pairs)), sizes),
            np.repeat([pair.document for pair in pairs], sizes),
        )
        return Inversion(recovered, pairs, scored)


@dataclass(frozen=True, eq=False)
class Scored:
    """Every scored position of all texts in one row: guess, truth, number of the text and of its document."""

    guessed: Integers
    true: Integers
    text: Integers
    document: Integers

    def effect(self, plan: Plan, alpha: float) -> PairedEffect | None:
        """Tokens named at their place above the unigram guesser; None where nothing is scored."""
        if not len(self.true):
            return None
        return paired_effect(
            paired_differences(self.guessed, self.true, most_frequent(self.true))[None],
            self.text,
            self.document,
            alpha=alpha,
            repetitions=plan.statistics.repetitions,
            generator=np.random.default_rng([plan.split.seed, 15]),
        )

    def dealt(self, seed: int) -> Scored:
        """Every text's guesses against the tokens of the next text of another document, in an order of chance."""
        generator = np.random.default_rng([seed, 16])
        texts, first = np.unique(self.text, return_index=True)
        documents = self.document[first]
        true = self.true.copy()
        for number, text in enumerate(texts):
            following = np.roll(np.arange(len(texts)), -number)
            others = following[documents[following] != documents[number]]
            tokens = self.true[self.text == (texts[others[0]] if len(others) else text)]
            mine = self.text == text
            true[mine] = np.resize(generator.permutation(tokens), int(mine.sum()))
        return Scored(self.guessed, true, self.text, self.document)


@dataclass(frozen=True, eq=False)
class Inversion:
    """What an attack made of texts, beside what they are."""

    recovered: list[Recovered]
    pairs: list[Pair]
    scored: Scored

    def told_numbers(self) -> dict[str, float]:
        """The mean over texts of every number that the attack tells of them, times left out."""
        values: dict[str, list[float]] = {}
        for guess in self.recovered:
            for name, value in guess.details.items():
                if isinstance(value, int | float) and not name.endswith("seconds"):
                    values.setdefault(f"attack_{name}", []).append(float(value))
        certain = [guess.certainty[guess.tokens >= 0] for guess in self.recovered if guess.certainty is not None]
        values["attack_certainty"] = [float(value) for part in certain for value in part]  # of what is named
        finite = {name: [value for value in numbers if np.isfinite(value)] for name, numbers in values.items()}
        return {name: float(np.mean(numbers)) for name, numbers in finite.items() if numbers}


def capture_texts(attack: Attack, material: Material, family: str, plan: Plan) -> Captured:
    """The attack as the plan sets it, and what it is given of the evidence."""
    attack = configured(attack, plan.inversion)
    grants = Grants(
        training=attack.question == "training_text",
        auxiliary_text=attack.assumes.auxiliary_text,
        known_plaintext=attack.assumes.known_plaintext,
    )
    return Captured(attack, *prompt_view(material, family, plan, grants))


def _run(attack: Attack, view: PromptView, plan: Plan, progress: Progress) -> list[Recovered]:
    """The attack's guesses. SettingsError when they do not fit the texts, as those of an installed attack may;
    NotMeasurableError, which keeps an audit from passing, when rows that no model makes end it.
    """
    try:
        recovered = list(attack.run(view, plan.inversion, progress))
    except (ArithmeticError, LookupError, RuntimeError, ValueError) as error:  # its text may hold what it read
        raise NotMeasurableError(f"the attack ended with {type(error).__name__}") from error
    lengths = [len(text.forward) + 1 for text in view.texts]
    if [len(guess.tokens) for guess in recovered] != lengths:
        raise SettingsError(
            f"the attack {attack.name} named tokens of {len(recovered)} texts, and not of the {len(lengths)} that it "
            "was given, each as long as it is",
            remedy="an attack gives one Recovered with T + 1 tokens for every text, in order",
        )
    return recovered


def _pairs(recovered: Sequence[Recovered], keys: Sequence[TextKey], captured: Captured) -> list[Pair]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(key.document for key in keys))}
    unnamed = {FORWARD_ONLY: -1, RESPONSE_SIDE: 0}.get(captured.view.family)
    pairs = []
    for guess, key in zip(recovered, keys, strict=True):
        true = key.tokens.copy()
        if unnamed is not None:
            true[unnamed] = UNKNOWN
        num_prompt = len(true) if captured.is_training else key.num_prompt
        pairs.append(Pair(np.asarray(guess.tokens, dtype=np.int64), true, numbers[key.document], num_prompt))
    return pairs
