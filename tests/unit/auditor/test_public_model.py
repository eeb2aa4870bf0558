"""The public model computes a text once, however often it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from auditor.public_model import PublicModel
from splitwire.backbone import ModelSettings

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [np.array(tokens) for tokens in ([5, 6, 7, 8], [9, 8], [5, 6, 7, 8], [1, 2, 3, 4])]


@pytest.fixture
def settings(tiny_model: Callable[[str], Path]) -> ModelSettings:
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


def test_a_text_runs_once_through_the_delegated_layers(settings: ModelSettings) -> None:
    model, sizes = PublicModel(settings), list[tuple[int, ...]]()
    with model.middle.register_forward_hook(lambda _module, rows, _out: sizes.append(tuple(rows[0].shape[:2]))):
        hidden = model.last_hidden(TEXTS[:3])
        returned = model.returned_rows(TEXTS)
    assert sorted(sizes) == [(1, 2), (1, 4), (1, 4)]
    assert [tuple(rows.shape) for rows in returned] == [(len(text), model.width) for text in TEXTS]
    assert hidden[0] is hidden[2]


def test_arms_side_by_side_share_what_one_of_them_computes(settings: ModelSettings) -> None:
    model, begun, calls = PublicModel(settings), threading.Barrier(2), list[int]()

    def ask() -> torch.Tensor:
        begun.wait(10)
        return model.last_hidden(TEXTS[:1])[0]

    with (
        model.middle.register_forward_hook(lambda *_: (calls.append(1), time.sleep(0.2))[1]),
        ThreadPoolExecutor(2) as pool,
    ):
        first, second = (job.result() for job in [pool.submit(ask), pool.submit(ask)])
    assert first is second
    assert len(calls) == 1


def test_what_was_computed_before_is_what_is_computed_alone(settings: ModelSettings) -> None:
    model = PublicModel(settings)
    model.last_hidden(TEXTS[:1])
    for text, rows, hidden in zip(TEXTS, model.returned_rows(TEXTS), model.last_hidden(TEXTS), strict=True):
        alone = PublicModel(settings)
        torch.testing.assert_close(rows, alone.returned_rows([text])[0])
        torch.testing.assert_close(hidden, alone.last_hidden([text])[0])
        torch.testing.assert_close(hidden, alone.finish([rows])[0])
