"""Bypassing a layer changes what crosses for as long as it lasts, and the check correlates what it read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from auditor.cli import app
from auditor.paf.bypass import check_by_bypass, pearson
from auditor.paf.measure import PafSettings, measure
from auditor.progress import silent
from auditor.public_model import PublicModel
from splitwire.backbone import ModelSettings, load_tokenizer, load_whole
from splitwire.errors import SettingsError

_TEXTS = [np.array([5, 9, 3, 7, 2, 11]), np.array([4, 8, 1, 6, 10, 3])]


def test_pearson() -> None:
    assert pearson([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx(1)
    assert pearson([1, 2, 3], [3, 1, 2]) == pytest.approx(-0.5)
    assert pearson([1, 1, 1], [3, 1, 2]) is None
    assert pearson([1, 2], [2, 1]) is None


def test_each_layer_is_gone_while_the_attack_runs(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack is replaced by one that reads the rows themselves, so that what it is given can be told apart."""
    settings = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=3)
    factors = measure(load_whole(settings), _TEXTS, PafSettings(blocks=2, rows=1), silent)
    model = PublicModel(settings)
    ids = torch.from_numpy(_TEXTS[0])[None]
    before = model.head(ids)

    def read(_attack: Any, attacked: PublicModel, *_rest: Any, **_named: Any) -> tuple[float, float]:
        rows = attacked.head(ids).detach()
        return float(rows.abs().sum()), float(rows[0, 0, 0])

    monkeypatch.setattr("auditor.paf.bypass._read", read)
    check = check_by_bypass(
        model, factors, _TEXTS, load_tokenizer(settings), steps=1, device="cpu", seed=1, progress=silent
    )
    assert torch.equal(model.head(ids), before)
    places = [(part.block, part.name) for part in check.layers]
    kept = ["self_attn", "mlp.act_fn", "input_layernorm", "post_attention_layernorm"]
    assert {(block, name) for block in (0, 1) for name in kept} <= set(places)
    assert not {name for _, name in places} & {"mlp.up_proj", "mlp.down_proj", "self_attn.k_proj"}
    read_values = [part.rouge_l_ratio for part in check.layers]
    assert len({check.whole_rouge_l_ratio, *read_values}) == len(places) + 1
    assert check.correlation == pearson([part.expected for part in check.layers], read_values)


def test_the_attack_reads_a_head_of_one_layer(tiny_model: Callable[[str], Path]) -> None:
    settings = ModelSettings(source=str(tiny_model("llama")), first_layer=1, last_layer=2)
    factors = measure(load_whole(settings), _TEXTS[:1], PafSettings(blocks=1, rows=1), silent)
    factors = [factor for factor in factors if factor.name == "self_attn"]
    check = check_by_bypass(
        PublicModel(settings),
        factors,
        _TEXTS[:1],
        load_tokenizer(settings),
        steps=400,
        device="cpu",
        seed=1,
        progress=silent,
    )
    assert check.layers[0].accuracy_ratio > check.whole_accuracy_ratio > 0.1  # one token of many hundreds by chance
    assert check.correlation is None


def test_the_command_writes_values_and_a_picture(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    text = tmp_path / "public.jsonl"
    text.write_text("".join(json.dumps({"text": "the quick brown fox jumps over it " * 60}) + "\n" for _ in range(12)))
    common = ["paf", str(tiny_model("llama")), "--texts", "2", "--length", "6", "--rows", "1", "--auxiliary", str(text)]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, [*common, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads((out / "paf.json").read_text())
    assert result["schema"] == "splitwire.paf/1"
    assert {layer["block"] for layer in result["layers"]} >= {0, 1, 2}
    assert result["bypass"] is None
    assert (out / "paf.svg").read_text().startswith("<svg xmlns")
    for options, named in (
        (["--out", str(out)], "not an empty folder"),
        (["--out", str(tmp_path / "b"), "--attention", "all"], "--attention is 'all'"),
        (["--out", str(tmp_path / "b"), "--bypass-steps", "5"], "needs --blocks"),
        (["--out", str(tmp_path / "b"), "--texts", "5000"], "--texts is 5000"),
    ):
        refused = CliRunner().invoke(app, [*common, *options])
        assert isinstance(refused.exception, SettingsError)
        assert named in str(refused.exception)
    assert not (tmp_path / "b").exists()
