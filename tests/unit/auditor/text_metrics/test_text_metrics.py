"""Metrics of recovered texts: known values, what they must not count, and bounds over documents."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from auditor.plan import Plan, StatisticsSettings
from auditor.text_metrics.entities import entities, entity_overlap
from auditor.text_metrics.intervals import metric
from auditor.text_metrics.performance import attack_performance, defence_score
from auditor.text_metrics.report import Pair, measure
from auditor.text_metrics.tokens import Overlap, bag_overlap, is_exact, position_hits
from auditor.text_metrics.words import bleu, meteor, rouge_l
from splitwire.errors import SettingsError

VECTORS = Path(__file__).parents[3] / "vectors" / "dcs.json"
SETTINGS = StatisticsSettings(repetitions=400)


def test_a_shuffled_guess_is_all_bag_and_no_place() -> None:
    """Bags forget the order; what is not named is right nowhere, and no member of a bag."""
    true = np.array([1, 2, 3, 4])
    shuffled, partly = np.array([2, 1, 4, 3]), np.array([1, -1, 3, -1])
    assert not position_hits(shuffled, true).any()
    assert bag_overlap(shuffled, true) == Overlap(num_common=4, num_guessed=4, num_true=4)
    assert position_hits(partly, true).tolist() == [True, False, True, False]
    assert bag_overlap(partly, true) == Overlap(num_common=2, num_guessed=2, num_true=4)
    assert is_exact(true, true)
    assert not is_exact(partly, true)


def test_word_metrics_have_their_known_values() -> None:
    """Equal texts, nothing at all, and a pair worked out by hand."""
    text, other = "the cats sat on a mat today", "the cat sat on the mat"
    for compute in (rouge_l, bleu):
        assert compute(text, text) == pytest.approx(1.0)
        assert compute("", text) == 0.0
    # Longest common subsequence, stemmed: the cat sat on mat, 5 of 7 and of 6.
    assert rouge_l(text, other) == pytest.approx(2 * (5 / 7) * (5 / 6) / (5 / 7 + 5 / 6))
    # One chunk of all words: the penalty is 0.5 / 7^3.
    assert meteor(text, text) == pytest.approx(1 - 0.5 / 7**3)
    assert meteor("", text) == 0.0
    assert meteor("a cats sat", "the cat sat") > meteor("a dog sat", "the cat sat")


def test_entities_are_numbers_and_capitalised_runs() -> None:
    """A word that only begins a sentence is none; one that comes capitalised elsewhere is."""
    found = entities("Remind Ada Lovelace of the rent. The 840.50 is due in Leeds. Leeds waits. My cat eats.")
    assert found == {"840.50": 1, "remind ada lovelace": 1, "leeds": 2}
    assert entity_overlap("i owe 5 to Bob", "We owe 5 to Bob and 7 to Eve").num_common == 2
    assert entity_overlap("", "nothing here") == Overlap(0, 0, 0)


def test_dcs_is_that_of_the_published_table() -> None:
    """Every row of it, to its rounding; alpha weighs prompt and answer."""
    for case in json.loads(VECTORS.read_text())["cases"]:
        found = defence_score(case["undefended_mp"], case["mp"], case["ap"])
        assert found == pytest.approx(case["dcs"], abs=0.0011), case
    assert attack_performance(0.8, 0.4) == pytest.approx(0.6)
    assert attack_performance(0.8, 0.4, alpha=1.0) == 0.8
    with pytest.raises(SettingsError, match="input_ratio is 80"):
        attack_performance(80, 0.4)


def test_bounds_are_over_documents_and_not_over_texts() -> None:
    """Copies of a document add nothing; all or nothing has an exact bound; few documents have none."""
    values = np.random.default_rng(1).uniform(0.2, 0.8, 30)
    once = metric("m", "text", values, np.arange(30), SETTINGS)
    copied = metric("m", "text", np.tile(values, 4), np.tile(np.arange(30), 4), SETTINGS)
    assert once.value == pytest.approx(values.mean())
    assert (once.lower, once.upper) == pytest.approx((copied.lower, copied.upper))
    assert once.lower is not None
    assert once.upper is not None
    assert 0.2 < once.lower < values.mean() < once.upper < 0.8
    whole = metric("m", "text", np.ones(20), np.arange(20), SETTINGS)
    assert (whole.upper, whole.lower) == (1.0, pytest.approx(0.05 ** (1 / 20)))
    nothing = metric("m", "text", np.zeros(20), np.arange(20), SETTINGS)
    assert (nothing.lower, nothing.upper) == (0.0, pytest.approx(1 - 0.05 ** (1 / 20)))
    assert metric("m", "text", [0.5] * 4, np.arange(4), SETTINGS).lower is None


def test_parts_of_a_text_are_measured_apart() -> None:
    """Prompt and answer have their own numbers, what nobody knows is not scored, and a missing metric says why."""
    words = SimpleNamespace(decode=lambda ids, **_: " ".join(f"word{i}" for i in ids))
    true, guess = np.array([5, 6, 7, 8, 9, 4, 3, 2, -1]), np.array([5, 6, 7, 8, -1, 0, 0, 0, 1])
    found = {(m.name, m.part): m for m in measure([Pair(guess, true, n, 4) for n in range(6)], words, Plan())}
    assert found["token_accuracy", "text"].value == 0.5
    assert found["token_accuracy", "prompt"].value == 1.0
    assert found["token_accuracy", "answer"].value == 0.0
    assert found["exact_match", "prompt"].value == 1.0
    assert found["ap_input", "text"].value == pytest.approx(1.0)
    assert found["ap_alpha", "text"].value == pytest.approx(0.5)
    assert found["embedding_similarity", "text"].value is None
    assert "no local folder" in found["embedding_similarity", "text"].note
    alone = measure([Pair(guess[:5], np.array([5, 6, 7, 8, -1]), n, 5) for n in range(6)], words, Plan())
    assert {m.part for m in alone} == {"text", "prompt"}


def test_a_part_without_words_has_no_metrics_of_words() -> None:
    """An answer of one end token is read or not as a token, and is no text."""
    words = SimpleNamespace(decode=lambda ids, **_: " ".join(f"word{i}" for i in ids if i > 1))
    pair = Pair(np.array([5, 6, 7, 1]), np.array([5, 6, 7, 1]), 0, 3)
    found = {(m.name, m.part): m for m in measure([replace(pair, document=n) for n in range(6)], words, Plan())}
    assert found["token_accuracy", "answer"].value == 1.0
    assert found["rouge_l", "answer"].value is None
    assert found["rouge_l", "prompt"].value == pytest.approx(1.0)
    assert not {name for name, _ in found} & {"ap_input", "ap_alpha"}
