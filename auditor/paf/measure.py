"""The factors of a model's layers on public texts.

Every text goes through the model once; at some of its rows, drawn by seed, the Jacobian of every layer is taken. A
linear layer has the same one everywhere and is taken once. Rows as wide as `exact_width` are taken exactly, wider ones
by stochastic Lanczos quadrature.

Shapes: T token ids of a text.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from auditor.arrays import Integers
from auditor.paf.factor import Factor, Spectrum, factor_of
from auditor.paf.layers import Call, Layer, measured_layers, record_calls, row_jacobian, sequence_product
from auditor.paf.spectrum import Quadrature, estimated_spectrum, exact_spectrum
from auditor.progress import Progress
from splitwire.backbone.families import family_of

AttentionJacobian = Literal["row", "sequence"]


@dataclass(frozen=True)
class PafSettings:
    """What is measured, and how much is spent."""

    blocks: int = 0
    """Blocks from the start of the model; 0 for all."""
    rows: int = 2
    """Rows of every text at which Jacobians are taken."""
    attention: AttentionJacobian = "row"
    """Attention with respect to its own row, the others fixed, or with respect to the whole sequence."""
    exact_width: int = 2048
    """Widest output whose eigenvalues are all computed."""
    quadrature: Quadrature = field(default_factory=Quadrature)
    seed: int = 0


@dataclass(frozen=True)
class LayerFactor:
    """Mean and standard deviation of a layer's factors over `count` Jacobians; a linear layer has one."""

    block: int
    name: str
    kind: str
    width: int
    input_width: int
    count: int
    expected: float
    expected_deviation: float
    maximum: float
    along_largest: float
    is_exact: bool


def measure(model: Any, texts: Sequence[Integers], settings: PafSettings, progress: Progress) -> list[LayerFactor]:
    """The factors of a whole causal language model's layers on texts of token ids [T]."""
    model.requires_grad_(False)
    body = getattr(model, family_of(model.config).body_attribute)
    blocks = list(getattr(body, family_of(model.config).layers))
    layers = measured_layers(blocks[: settings.blocks or len(blocks)])
    generator = torch.Generator().manual_seed(settings.seed)
    found: list[list[tuple[Factor, bool]]] = [[] for _ in layers]
    widths: dict[int, tuple[int, int]] = {}
    for number, text in enumerate(texts):
        ids = torch.from_numpy(text)[None].to(model.device)
        calls = record_calls(layers, partial(body, ids, use_cache=False))
        rows = torch.randperm(len(text), generator=generator)[: settings.rows].tolist()
        for place, (layer, call) in enumerate(zip(layers, calls, strict=True)):
            progress("taking Jacobians", number * len(layers) + place, len(texts) * len(layers))
            if layer.kind == "linear" and found[place]:
                continue
            for spectrum, width, is_exact in _spectra(layer, call, rows, settings, generator):
                found[place].append((factor_of(spectrum), is_exact))
                widths[place] = width
    return [_summary(layer, found[place], widths[place]) for place, layer in enumerate(layers)]


def tree(factors: Sequence[LayerFactor]) -> list[dict[str, Any]]:
    """As plain values."""
    return [asdict(factor) for factor in factors]


def _spectra(
    layer: Layer, call: Call, rows: Sequence[int], settings: PafSettings, generator: torch.Generator
) -> list[tuple[Spectrum, tuple[int, int], bool]]:
    if layer.kind == "attention" and settings.attention == "sequence":
        product, width = sequence_product(layer, call)
        estimate = estimated_spectrum(product, width, settings.quadrature, generator)
        return [(estimate, (width, call.rows.numel()), False)]
    chosen = rows[:1] if layer.kind == "linear" else rows
    return [_row_spectrum(row_jacobian(layer, call, row), settings, generator) for row in chosen]


def _row_spectrum(
    jacobian_DE: torch.Tensor, settings: PafSettings, generator: torch.Generator
) -> tuple[Spectrum, tuple[int, int], bool]:
    width = (jacobian_DE.shape[0], jacobian_DE.shape[1])
    if width[0] <= settings.exact_width:
        return exact_spectrum(jacobian_DE), width, True
    matrix = jacobian_DE.double()

    def product(vector: torch.Tensor) -> torch.Tensor:
        return matrix @ (matrix.T @ vector)

    return estimated_spectrum(product, width[0], settings.quadrature, generator), width, False


def _summary(layer: Layer, found: Sequence[tuple[Factor, bool]], width: tuple[int, int]) -> LayerFactor:
    expected = [factor.expected for factor, _ in found]
    return LayerFactor(
        block=layer.block,
        name=layer.name,
        kind=layer.kind,
        width=width[0],
        input_width=width[1],
        count=len(found),
        expected=statistics.fmean(expected),
        expected_deviation=statistics.stdev(expected) if len(expected) > 1 else 0.0,
        maximum=statistics.fmean(factor.maximum for factor, _ in found),
        along_largest=statistics.fmean(factor.along_largest for factor, _ in found),
        is_exact=all(is_exact for _, is_exact in found),
    )
