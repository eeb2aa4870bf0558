"""The deep probe: the published shape, learned on whole frames, with nothing shared between rows of padding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from auditor.attacks import ATTACKS
from auditor.attacks.deep_probe import DeepArm, DeepProbe, Encoder
from auditor.plan import BUILT_IN, DeepProbeSettings, Plan
from auditor.scorers.token import probe_settings
from auditor.views.token import TokenView

TINY = DeepProbeSettings(epochs=12, width=16, layers=1, batch_rows=100, learning_rate=3e-3)
TOKENS, WIDTH = 4, 6


def _view(leak: float) -> tuple[TokenView, NDArray[np.int64]]:
    """Frames of 9 and 10 rows; a row's token is that of the direction that its neighbours in the set share."""
    generator = np.random.default_rng(1)
    offsets = np.cumsum([0, *([9, 10] * 20)])
    tokens = generator.integers(0, TOKENS, offsets[-1])
    rows = leak * generator.normal(size=(TOKENS, WIDTH))[tokens] + generator.normal(size=(len(tokens), WIDTH))
    half = int(offsets[20])
    train, score = np.arange(half), np.arange(half, len(tokens))
    return TokenView("forward_only", "all", rows.astype(np.float32), offsets, train, tokens[:half], score, 3), tokens


def _accuracy(leak: float) -> float:
    view, tokens = _view(leak)
    arm = DeepProbe().run(view, TINY, lambda *_: None)[0]
    arm.fit(lambda _: None)
    hits = [arm.classes[v.argmax(1)] == tokens[view.score_rows[p]] for p, v in arm.log_probabilities()]
    assert sum(map(len, hits)) == len(view.score_rows)
    return float(np.concatenate(hits).mean())


def test_a_leak_is_learned_and_noise_is_not() -> None:
    """190 score rows: three standard errors around chance are .09."""
    assert _accuracy(3.0) > 0.7
    assert _accuracy(0.0) < 0.36


def test_the_defaults_are_the_published_shape() -> None:
    with torch.device("meta"):
        widths = {width: Encoder(width, 9, DeepProbeSettings()).enter.out_features for width in (64, 600, 2048)}
        model = Encoder(64, 9, DeepProbeSettings())
    assert widths == {64: 512, 600: 600, 2048: 1024}
    layer = model.layers.layers[0]
    assert (len(model.layers.layers), layer.self_attn.num_heads, layer.linear1.out_features) == (4, 8, 2048)
    assert layer.norm_first
    assert (DeepProbeSettings().epochs, DeepProbeSettings().weight_decay) == (50, 1e-4)


def test_padding_changes_nothing() -> None:
    view, _ = _view(1.0)
    arm = DeepArm("one", view, np.arange(TOKENS), TINY, 0)
    together, rows = arm._hidden([(0, 9), (9, 19)])
    alone, _ = arm._hidden([(0, 9)])
    torch.testing.assert_close(together[rows < 9], alone, rtol=1e-4, atol=1e-5)


def test_it_has_a_budget_of_its_own_and_no_built_in_plan_runs_it() -> None:
    plan = dataclasses.replace(Plan(), deep_probe=TINY)
    assert probe_settings(ATTACKS["deep_probe"], plan) is TINY
    assert probe_settings(ATTACKS["latent_probe"], plan) is plan.probe
    assert all("deep_probe" not in built_in.attacks for built_in in BUILT_IN.values())


@pytest.mark.parametrize("limit", [0, 3])
def test_a_limit_of_frames_is_kept_to(limit: int) -> None:
    view, _ = _view(1.0)
    arm = DeepArm("one", view, np.arange(TOKENS), dataclasses.replace(TINY, epochs=1, max_train_frames=limit), 0)
    seen: list[float] = []
    arm.fit(seen.append)
    assert len(seen) == (2 if limit == 0 else 1)
