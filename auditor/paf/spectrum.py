"""The spectrum of J J^T: from all its eigenvalues, or by stochastic Lanczos quadrature from products with vectors.

Quadrature: for a random sign vector z, E z^T f(A) z is the trace of f(A), and a few Lanczos steps give z^T f(A) z as a
weighted sum over the eigenvalues of a small tridiagonal matrix (Ubaru, Chen and Saad, Fast estimation of tr(f(A)) via
stochastic Lanczos quadrature, 2017). The largest eigenvalue is the largest of these Ritz values.

Shapes: D width of the layer's output, E of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from auditor.paf.factor import Spectrum, spectrum_of

_BREAKDOWN = 1e-10  # relative to the largest Ritz value: the Krylov space is exhausted

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Quadrature:
    """How much is spent on an estimate."""

    probes: int = 16
    """Random sign vectors."""
    steps: int = 48
    """Lanczos steps of each."""


def exact_spectrum(jacobian_DE: torch.Tensor) -> Spectrum:
    """From the singular values of a Jacobian [D, E]; where D is above E the rest of the eigenvalues are zero."""
    singular = torch.linalg.svdvals(jacobian_DE.double())
    missing = jacobian_DE.shape[0] - len(singular)
    return spectrum_of(torch.cat([singular.square(), singular.new_zeros(missing)]))


def estimated_spectrum(product: Product, width: int, quadrature: Quadrature, generator: torch.Generator) -> Spectrum:
    """From `product`, which maps a vector [D] (float64) to J J^T times it."""
    largest, root, inverse = 0.0, 0.0, 0.0
    for _ in range(quadrature.probes):
        signs = torch.randint(0, 2, (width,), generator=generator).double() * 2 - 1
        values, weights = _lanczos(product, signs, min(quadrature.steps, width))
        values = values.clamp_min(0)
        largest = max(largest, float(values.max()))
        root += width * float((weights * (values + 1).rsqrt()).sum()) / quadrature.probes
        inverse += width * float((weights * (values + 1).reciprocal()).sum()) / quadrature.probes
    return Spectrum(width=width, largest=largest, sum_root=root, sum_inverse=inverse)


def _lanczos(product: Product, start: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ritz values and the weights of a quadrature for the start vector [D], which need not have length 1."""
    basis = [start / start.norm()]
    diagonal: list[torch.Tensor] = []
    beside: list[torch.Tensor] = []
    for _ in range(steps):
        image = product(basis[-1])
        diagonal.append(image @ basis[-1])
        known = torch.stack(basis)
        for _ in range(2):  # once more: the second pass removes what rounding left
            image = image - known.T @ (known @ image)
        length = image.norm()
        if len(diagonal) == steps or length <= _BREAKDOWN * max(float(diagonal[0]), 1.0):
            break
        beside.append(length)
        basis.append(image / length)
    matrix = torch.diag(torch.stack(diagonal))
    if beside:
        sides = torch.stack(beside)
        matrix = matrix + torch.diag(sides, 1) + torch.diag(sides, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors[0].square()
