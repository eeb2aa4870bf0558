"""All metrics of recovered texts: of whole texts, of their prompts and of their answers, with bounds over documents.

Tokens are compared as they are; words after decoding with the model's tokenizer, without special tokens. Positions that
an attack does not name are left out of its words. What the truth does not tell is not scored, and a part without words,
such as an answer of one end token, has no metrics of words.

Shapes: N texts, T positions of one text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditor.arrays import Integers
from auditor.plan import Plan
from auditor.text_metrics.embedding import NOT_AVAILABLE, SentenceEmbedder
from auditor.text_metrics.entities import RULE, entity_overlap
from auditor.text_metrics.intervals import Metric, metric, missing
from auditor.text_metrics.performance import ALPHA
from auditor.text_metrics.tokens import Overlap, bag_overlap, is_exact, position_hits
from auditor.text_metrics.words import METEOR_STAGES, bleu, meteor, rouge_l

WHOLE, PROMPT, ANSWER = "text", "prompt", "answer"
_BAG = "bag of tokens: order does not count"


@dataclass(frozen=True, eq=False)
class Pair:
    """The guess and the truth of one text: tokens [T + 1] each (-1: not named, not scored), the number of its document,
    and where the prompt ends.
    """

    guessed: Integers
    true: Integers
    document: int
    num_prompt: int

    def part(self, name: str) -> tuple[Integers, Integers]:
        """Guess and truth of the positions of a part that the truth tells."""
        places = {WHOLE: slice(None), PROMPT: slice(None, self.num_prompt), ANSWER: slice(self.num_prompt, None)}[name]
        guessed, true = self.guessed[places], self.true[places]
        return guessed[true >= 0], true[true >= 0]


def measure(pairs: Sequence[Pair], tokenizer: Any, plan: Plan) -> list[Metric]:
    """Every metric of every part that any text has."""
    embedder = SentenceEmbedder(Path(plan.inversion.embedding_model)) if plan.inversion.embedding_model else None
    found: list[Metric] = []
    for part in (WHOLE, PROMPT, ANSWER):
        parts = [(pair.document, *pair.part(part)) for pair in pairs]
        used = [(document, guessed, true) for document, guessed, true in parts if len(true)]
        if used:
            found += _Part(part, used, tokenizer, plan).metrics(embedder)
    return [*found, *_performance(pairs, tokenizer, plan)]


def decoded(tokens: Integers, tokenizer: Any) -> str:
    """The words of the tokens that are named."""
    named = [int(token) for token in tokens if token >= 0]
    return str(tokenizer.decode(named, skip_special_tokens=True))


class _Part:
    """One part of all texts that have it."""

    def __init__(self, name: str, used: Sequence[tuple[int, Integers, Integers]], tokenizer: Any, plan: Plan) -> None:
        self._name, self._used, self._plan = name, used, plan
        self._documents = np.array([document for document, _, _ in used], dtype=np.int64)
        words = [(decoded(guessed, tokenizer), decoded(true, tokenizer)) for _, guessed, true in used]
        worded = [number for number, (_, true) in enumerate(words) if true.strip()]
        self._words, self._worded = [words[number] for number in worded], self._documents[worded]

    def metrics(self, embedder: SentenceEmbedder | None) -> list[Metric]:
        """Tokens first, then words."""
        hits = [float(position_hits(guessed, true).sum()) for _, guessed, true in self._used]
        lengths = [float(len(true)) for _, _, true in self._used]
        bags = [bag_overlap(guessed, true) for _, guessed, true in self._used]
        exact = [float(is_exact(guessed, true)) for _, guessed, true in self._used]
        return [
            self._metric("token_accuracy", hits, lengths, note="position by position"),
            *self._overlaps("token", bags, _BAG),
            self._metric("exact_match", exact),
            self._of_words("rouge_l", rouge_l, "F measure, stemmed"),
            self._of_words("bleu", bleu),
            self._of_words("meteor", meteor, f"stages {' and '.join(METEOR_STAGES)}"),
            self._similarity(embedder),
            self._entities(),
        ]

    def _overlaps(self, name: str, bags: Sequence[Overlap], note: str) -> list[Metric]:
        """Precision, recall and F1, over all texts together."""
        common = [float(bag.num_common) for bag in bags]
        guessed, true = [float(bag.num_guessed) for bag in bags], [float(bag.num_true) for bag in bags]
        both = [one + other for one, other in zip(guessed, true, strict=True)]
        return [
            self._metric(f"{name}_bag_precision", common, guessed, note=note),
            self._metric(f"{name}_bag_recall", common, true, note=note),
            self._metric(f"{name}_bag_f1", [2 * value for value in common], both, note=note),
        ]

    def _similarity(self, embedder: SentenceEmbedder | None) -> Metric:
        if embedder is None:
            return missing("embedding_similarity", self._name, NOT_AVAILABLE)
        return self._of_words("embedding_similarity", embedder.similarity)

    def _entities(self) -> Metric:
        bags = [entity_overlap(*words) for words in self._words]
        both = [float(bag.num_guessed + bag.num_true) for bag in bags]
        common = [2.0 * bag.num_common for bag in bags]
        return self._metric("entity_f1", common, both, note=RULE, documents=self._worded)

    def _of_words(self, name: str, compute: Callable[[str, str], float], note: str = "") -> Metric:
        """The mean over the texts that have words."""
        values = [compute(*words) for words in self._words]
        return self._metric(name, values, note=note, documents=self._worded)

    def _metric(
        self,
        name: str,
        values: Sequence[float],
        denominators: Sequence[float] | None = None,
        note: str = "",
        documents: Integers | None = None,
    ) -> Metric:
        return metric(
            name,
            self._name,
            values,
            self._documents if documents is None else documents,
            self._plan.statistics,
            denominators=denominators,
            seed=self._plan.split.seed,
            note=note,
        )


def _performance(pairs: Sequence[Pair], tokenizer: Any, plan: Plan) -> list[Metric]:
    """AP of the texts that have words in the prompt and in the answer; nothing where none has."""
    both = [pair for pair in pairs if all(decoded(pair.part(part)[1], tokenizer).strip() for part in (PROMPT, ANSWER))]
    if not both:
        return []
    documents = np.array([pair.document for pair in both], dtype=np.int64)
    scores = {
        part: [bleu(*(decoded(tokens, tokenizer) for tokens in pair.part(part))) for pair in both]
        for part in (PROMPT, ANSWER)
    }
    weighted = [
        ALPHA * prompt + (1 - ALPHA) * answer for prompt, answer in zip(scores[PROMPT], scores[ANSWER], strict=True)
    ]
    columns = (("ap_input", scores[PROMPT]), ("ap_response", scores[ANSWER]), ("ap_alpha", weighted))
    note = f"BLEU of texts with an answer; alpha {ALPHA:g}"
    return [
        metric(name, WHOLE, values, documents, plan.statistics, seed=plan.split.seed, note=note)
        for name, values in columns
    ]
