"""PAF and Max-PAF from the spectrum of a layer's Jacobian.

The inverse of a layer turns an error delta of its output into an error Delta of its input with
|Delta|^2 <= sum_i (|J| cos(theta_i) / sqrt(sigma_i + 1))^2, where sigma_i are the eigenvalues of J J^T and theta_i the
angle between delta and their eigenvectors (Prompt inversion in split inference, section 5.1). The published factor is

    PAF = E over delta ~ N(0, I) of sum_i | |J|_2 cos(theta_i) / sqrt(sigma_i + 1) |

For Gaussian delta the direction is uniform, so E |cos(theta_i)| is the same number c_d for every i, and no sampling is
needed: PAF = c_d |J|_2 sum_i 1 / sqrt(sigma_i + 1), with c_d = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)).

Max-PAF is the largest value that the same sum takes over all directions of delta. By Cauchy and Schwarz that is
|J|_2 sqrt(sum_i 1 / (sigma_i + 1)), where cos(theta_i) is proportional to 1 / sqrt(sigma_i + 1). Where all sigma_i are
equal it is sqrt(pi / 2) times PAF in high dimension, and so nothing is gained by aiming; where they differ it is more.
`along_largest` is the value along the one eigenvector of the largest eigenvalue.

Shapes: D eigenvalues, the width of the layer's output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Spectrum:
    """What the factors need of J J^T [D, D]: its size, its largest eigenvalue and two sums over all of them.

    `sum_root` is sum_i 1 / sqrt(sigma_i + 1), `sum_inverse` is sum_i 1 / (sigma_i + 1).
    """

    width: int
    largest: float
    sum_root: float
    sum_inverse: float


@dataclass(frozen=True)
class Factor:
    """The factors of one layer at one input. Without unit."""

    expected: float
    maximum: float
    along_largest: float


def mean_cosine(width: int) -> float:
    """E |cos| between a fixed and a uniformly random direction in `width` dimensions; ValueError below 1."""
    if width < 1:
        raise ValueError(f"width is {width}, expected at least 1")
    return math.exp(math.lgamma(width / 2) - math.lgamma((width + 1) / 2)) / math.sqrt(math.pi)


def spectrum_of(eigenvalues: torch.Tensor) -> Spectrum:
    """The spectrum whose eigenvalues [D] are all known."""
    sigma = eigenvalues.double().clamp_min(0)
    return Spectrum(
        width=len(sigma),
        largest=float(sigma.max()),
        sum_root=float((sigma + 1).rsqrt().sum()),
        sum_inverse=float((sigma + 1).reciprocal().sum()),
    )


def factor_of(spectrum: Spectrum) -> Factor:
    """PAF, Max-PAF and the value along the largest eigenvalue."""
    norm = math.sqrt(spectrum.largest)
    return Factor(
        expected=mean_cosine(spectrum.width) * norm * spectrum.sum_root,
        maximum=norm * math.sqrt(spectrum.sum_inverse),
        along_largest=norm / math.sqrt(spectrum.largest + 1),
    )
