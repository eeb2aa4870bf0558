"""The formulas against sampling, and the quadrature against all eigenvalues."""

from __future__ import annotations

import math

import pytest
import torch

from auditor.paf.factor import factor_of, mean_cosine, spectrum_of
from auditor.paf.spectrum import Quadrature, estimated_spectrum, exact_spectrum


@pytest.mark.parametrize("width", [1, 2, 3, 64])
def test_the_mean_cosine_is_that_of_random_directions(width: int) -> None:
    noise = torch.randn(200_000, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cosines = (noise[:, 0] / noise.norm(dim=1)).abs()
    error = float(cosines.std()) / math.sqrt(len(cosines))
    assert mean_cosine(width) == pytest.approx(float(cosines.mean()), abs=5 * error + 1e-12)


def test_the_mean_cosine_of_a_circle_is_two_over_pi() -> None:
    assert mean_cosine(2) == pytest.approx(2 / math.pi, abs=1e-12)
    with pytest.raises(ValueError, match="width is 0"):
        mean_cosine(0)


def test_the_factor_is_the_sampled_expectation() -> None:
    """The sum of the paper, sampled over Gaussian noise, against the closed form."""
    jacobian = torch.randn(24, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sigma, vectors = torch.linalg.eigh(jacobian @ jacobian.T)
    noise = torch.randn(100_000, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    cosines = (noise @ vectors) / noise.norm(dim=1, keepdim=True)
    norm = torch.linalg.matrix_norm(jacobian, 2)
    sums = (norm * cosines / (sigma.clamp_min(0) + 1).sqrt()).abs().sum(1)
    factor = factor_of(exact_spectrum(jacobian))
    assert factor.expected == pytest.approx(float(sums.mean()), abs=5 * float(sums.std()) / math.sqrt(len(sums)))
    assert factor.maximum >= float(sums.max())
    best = (sigma.clamp_min(0) + 1).rsqrt()
    reached = (norm * (best / best.norm()) / (sigma.clamp_min(0) + 1).sqrt()).abs().sum()
    assert factor.maximum == pytest.approx(float(reached), rel=1e-9)


def test_equal_eigenvalues_leave_nothing_to_aim_at() -> None:
    factor = factor_of(spectrum_of(torch.full((4096,), 0.09)))
    assert factor.maximum / factor.expected == pytest.approx(math.sqrt(math.pi / 2), rel=1e-3)
    assert factor.along_largest == pytest.approx(0.3 / math.sqrt(1.09))


def test_quadrature_agrees_with_all_eigenvalues() -> None:
    generator = torch.Generator().manual_seed(4)
    jacobian = torch.randn(300, 80, generator=generator, dtype=torch.float64) * torch.logspace(-2, 1, 80)
    exact = exact_spectrum(jacobian)
    found = estimated_spectrum(lambda v: jacobian @ (jacobian.T @ v), 300, Quadrature(32, 40), generator)
    assert found.largest == pytest.approx(exact.largest, rel=1e-6)
    assert found.sum_root == pytest.approx(exact.sum_root, rel=0.02)
    assert found.sum_inverse == pytest.approx(exact.sum_inverse, rel=0.02)


def test_quadrature_is_exact_where_the_krylov_space_ends() -> None:
    """Two eigenvalues, one of them zero on most of the space."""
    found = estimated_spectrum(lambda v: 4 * v, 50, Quadrature(3, 20), torch.Generator().manual_seed(5))
    assert (found.largest, found.sum_root) == (pytest.approx(4), pytest.approx(50 / math.sqrt(5)))
