"""ROUGE-L, BLEU and METEOR of one guessed text against the true one, as ratios.

    rouge_l   F measure of the longest common subsequence, words stemmed (rouge-score)
    bleu      4-grams, 13a tokens, exponential smoothing, shorter orders where a text has no 4-gram (sacrebleu)
    meteor    nltk's METEOR with its stages `exact` and `stem`; the stage of synonyms needs WordNet and does not run

An empty guess scores 0. Sources: Lin 2004; Papineni et al. 2002; Lavie and Agarwal 2007.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

METEOR_STAGES = ("exact", "stem")


def rouge_l(guessed: str, true: str) -> float:
    """F measure of ROUGE-L."""
    return float(_rouge().score(true, guessed)["rougeL"].fmeasure)


def bleu(guessed: str, true: str) -> float:
    """Sentence BLEU."""
    return min(1.0, float(_bleu().sentence_score(guessed, [true]).score) / 100)


def meteor(guessed: str, true: str) -> float:
    """METEOR of the stages METEOR_STAGES."""
    from nltk.translate.meteor_score import single_meteor_score  # noqa: PLC0415 - slow to load, and seldom needed

    if not guessed.split() or not true.split():
        return 0.0
    return float(single_meteor_score(true.split(), guessed.split(), stemmer=_stemmer(), wordnet=_NoSynonyms()))


class _NoSynonyms:
    """Stands where WordNet would be, and knows no word: the stage of synonyms then finds nothing."""

    @staticmethod
    def synsets(_word: str) -> list[Any]:
        return []


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415

    return RougeScorer(["rougeL"], use_stemmer=True)


@lru_cache(maxsize=1)
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415

    return BLEU(effective_order=True)


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer  # noqa: PLC0415

    return PorterStemmer()
