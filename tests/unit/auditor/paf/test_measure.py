"""Layers of tiny models of every family: what is found, and that each Jacobian is the layer's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

from auditor.paf.factor import factor_of, spectrum_of
from auditor.paf.layers import measured_layers, record_calls, row_jacobian, sequence_product
from auditor.paf.measure import PafSettings, measure
from auditor.paf.plot import paf_plot
from auditor.paf.spectrum import Quadrature
from auditor.progress import silent
from splitwire.backbone import ModelSettings, load_whole
from splitwire.backbone.families import family_of

_TEXT = np.array([5, 9, 3, 7, 2, 11])


def whole(folder: Path) -> Any:
    return load_whole(ModelSettings(source=str(folder), first_layer=1, last_layer=2)).requires_grad_(False)


def first_block(model: Any) -> tuple[list[Any], list[Any]]:
    family = family_of(model.config)
    body = getattr(model, family.body_attribute)
    layers = measured_layers(list(getattr(body, family.layers))[:1])
    return layers, record_calls(layers, lambda: body(torch.from_numpy(_TEXT)[None], use_cache=False))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_every_family_has_factors(tiny_model: Callable[[str], Path], family: str) -> None:
    model = whole(tiny_model(family))
    found = measure(model, [_TEXT], PafSettings(blocks=1, rows=1), silent)
    kinds = {factor.kind for factor in found}
    assert kinds == {"linear", "rowwise", "attention"}
    assert all(factor.expected > 0 and factor.is_exact for factor in found)
    assert all(factor.along_largest <= factor.maximum for factor in found)


def test_jacobians_predict_what_a_small_change_does(tiny_model: Callable[[str], Path]) -> None:
    layers, calls = first_block(whole(tiny_model("llama")))
    for layer, call in zip(layers, calls, strict=True):
        change = 1e-4 * torch.randn(call.rows[2].shape, generator=torch.Generator().manual_seed(6))
        moved = call.rows.clone()
        moved[2] += change
        before, after = (layer.module(rows[None], *call.others, **call.named) for rows in (call.rows, moved))
        if layer.kind == "attention":
            before, after = before[0], after[0]
        seen = (after - before)[0, 2]
        expected = row_jacobian(layer, call, 2) @ change
        assert (seen - expected).norm() < 0.05 * expected.norm(), layer.name


def test_a_linear_layers_jacobian_is_its_weight(tiny_model: Callable[[str], Path]) -> None:
    layers, calls = first_block(whole(tiny_model("llama")))
    (number,) = [n for n, layer in enumerate(layers) if layer.name == "mlp.down_proj"]
    assert torch.allclose(row_jacobian(layers[number], calls[number], 0), layers[number].module.weight, atol=1e-6)


def test_attention_over_the_sequence_is_another_and_agrees_with_its_whole_jacobian(
    tiny_model: Callable[[str], Path],
) -> None:
    model = whole(tiny_model("llama"))
    layers, calls = first_block(model)
    (number,) = [n for n, layer in enumerate(layers) if layer.kind == "attention"]
    product, width = sequence_product(layers[number], calls[number])
    matrix = torch.stack([product(unit) for unit in torch.eye(width, dtype=torch.float64)])
    assert torch.allclose(matrix, matrix.T, atol=1e-5)
    exact = factor_of(spectrum_of(torch.linalg.eigvalsh(matrix)))
    settings = PafSettings(blocks=1, rows=1, attention="sequence", quadrature=Quadrature(24, 40))
    (found,) = [factor for factor in measure(model, [_TEXT], settings, silent) if factor.kind == "attention"]
    assert (found.width, found.is_exact) == (width, False)
    assert found.expected == pytest.approx(exact.expected, rel=0.03)
    by_row = measure(model, [_TEXT], replace(settings, attention="row"), silent)
    assert next(factor.width for factor in by_row if factor.kind == "attention") < width


def test_wide_layers_are_estimated_and_agree(tiny_model: Callable[[str], Path]) -> None:
    model = whole(tiny_model("llama"))
    exact = measure(model, [_TEXT], PafSettings(blocks=1), silent)
    rough = measure(model, [_TEXT], PafSettings(blocks=1, exact_width=1), silent)
    for one, other in zip(exact, rough, strict=True):
        assert one.is_exact
        assert not other.is_exact
        assert other.expected == pytest.approx(one.expected, rel=0.1)


def test_the_plot_is_one_whole_picture(tiny_model: Callable[[str], Path]) -> None:
    found = measure(whole(tiny_model("llama")), [_TEXT], PafSettings(), silent)
    root = ET.fromstring(paf_plot(found, "PAF of <a model>"))  # noqa: S314 - our own output
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 * len({factor.name for factor in found})
