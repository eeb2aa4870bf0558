"""An evaluation harness must score the split model as it scores the unsplit one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deploy.evaluation.task import evaluate
from splitwire.backbone import load_tokenizer

pytest.importorskip("lm_eval", reason="the evaluation harness is not installed (extra eval)")


def test_a_task_over_the_wire_gives_the_unsplit_scores(
    start_node: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """lm-eval's own transformers model, in batches of rows of different lengths; choice by choice."""
    node = start_node()
    tokenizer = load_tokenizer(node.settings.model)
    link = connect(node)
    model = link.split_model()
    split = evaluate(model, tokenizer, batch_size=3, limit=4)
    whole = evaluate(link.whole_model(), tokenizer, batch_size=3, limit=4)
    assert model.crossing.last_step > 0
    assert (split["acc"], split["acc_norm"]) == (whole["acc"], whole["acc_norm"])
    for ours, theirs in zip(split["log_likelihoods"], whole["log_likelihoods"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)
    assert len({value for values in split["log_likelihoods"] for value in values}) == 16
