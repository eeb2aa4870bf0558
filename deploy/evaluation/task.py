"""A task for lm-eval that needs no network: which of four sentences follows the one that is given.

The 48 questions are of public addresses of United States presidents; the three wrong sentences are of other passages.
Any task of the harness runs the same way: the split model is a transformers model, which `HFLM(pretrained=...)` takes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "splitwire_next_sentence"
_FILE = Path(__file__).with_name("next_sentence.jsonl")


def questions() -> list[dict[str, Any]]:
    """`passage`, four `choices`, and the index of the right one."""
    return [json.loads(line) for line in _FILE.read_text(encoding="ascii").splitlines()]


def task(limit: int | None = None) -> dict[str, Any]:
    """The task as the harness takes it, with the first `limit` questions."""
    import datasets  # noqa: PLC0415 - the harness and what it needs load when a task runs

    return {
        "task": NAME,
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(questions()[:limit])},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{passage}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }


def evaluate(model: Any, tokenizer: Any, *, batch_size: int = 8, limit: int | None = None) -> dict[str, Any]:
    """`acc` and `acc_norm` of a transformers model, and the log-likelihood of every choice, [questions][4]."""
    import lm_eval  # noqa: PLC0415
    from lm_eval.models.huggingface import HFLM  # noqa: PLC0415
    from lm_eval.tasks import TaskManager  # noqa: PLC0415

    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    tasks = TaskManager(include_defaults=False).load([task(limit)])  # not the thousands that it comes with
    found = lm_eval.evaluate(harness, tasks, bootstrap_iters=0, log_samples=True)
    scores = found["results"][NAME]
    samples = sorted(found["samples"][NAME], key=lambda sample: int(sample["doc_id"]))
    return {
        "acc": scores["acc,none"],
        "acc_norm": scores["acc_norm,none"],
        "log_likelihoods": [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples],
    }
