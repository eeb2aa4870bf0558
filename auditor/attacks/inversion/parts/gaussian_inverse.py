"""The embedding behind a row, if rows and embeddings were jointly Gaussian: ridge regression that knows its own error.

Only first and second moments are fitted, so what the wire did to a row is taken into account afterwards, in closed
form: noise adds to the covariance of rows, an entry that did not cross is left out. The covariance of the error gives
the metric in which the vocabulary is ranked: it is what lifts the first guess on SmolLM2 after 5 blocks
from .78 to .86.

Shapes: N rows, T positions, H hidden width, E embedding width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_SHRINK = 1e-4  # of the mean variance, added to every channel
_ERROR_SHRINK = 1e-3
_ERROR_ROWS = 4  # rows whose own error covariance is averaged where every row lacks other entries


@dataclass(frozen=True, eq=False)
class GaussianInverse:
    """Moments, in float64: means of rows [H] and embeddings [E], their covariances, and the cross-covariance [H, E]."""

    row_mean: torch.Tensor
    embedding_mean: torch.Tensor
    row_covariance: torch.Tensor
    embedding_covariance: torch.Tensor
    cross_covariance: torch.Tensor

    @classmethod
    def fit(cls, rows_NH: torch.Tensor, embeddings_NE: torch.Tensor, shrink: float = _SHRINK) -> GaussianInverse:
        """From rows of the head and the embeddings of the tokens at their positions."""
        rows, embeddings = rows_NH.double(), embeddings_NE.double()
        row_mean, embedding_mean = rows.mean(0), embeddings.mean(0)
        rows, embeddings = rows - row_mean, embeddings - embedding_mean
        covariance = rows.T @ rows / len(rows)
        covariance += torch.diag(shrink * covariance.diagonal() + 1e-12)
        return cls(
            row_mean,
            embedding_mean,
            covariance,
            embeddings.T @ embeddings / len(rows),
            rows.T @ embeddings / len(rows),
        )

    def weights(self, noise_H: torch.Tensor, known_H: torch.Tensor) -> torch.Tensor:
        """Weights [H, E] for rows whose known entries carry noise of this variance; 0 for entries not known."""
        kept = known_H.nonzero()[:, 0]
        damped = self.row_covariance[kept][:, kept] + torch.diag(noise_H[kept].double())
        weights_HE = torch.zeros_like(self.cross_covariance)
        weights_HE[kept] = torch.linalg.solve(damped, self.cross_covariance[kept])
        return weights_HE

    def embeddings(self, rows_TH: torch.Tensor, known_TH: torch.Tensor, noise_H: torch.Tensor) -> torch.Tensor:
        """The expected embedding [T, E] of each row."""
        centred_TH = rows_TH.double() - self.row_mean
        if bool(known_TH.all()):
            return self.embedding_mean + centred_TH @ self.weights(noise_H, known_TH[0])
        return self.embedding_mean + torch.stack(
            [row_H @ self.weights(noise_H, known_H) for row_H, known_H in zip(centred_TH, known_TH, strict=True)]
        )

    def error_covariance(self, known_TH: torch.Tensor, noise_H: torch.Tensor) -> torch.Tensor:
        """Covariance [E, E] of what the expected embedding leaves open, for rows with these known entries."""
        patterns = known_TH[:1] if bool(known_TH.all()) else known_TH[:_ERROR_ROWS]
        explained_HE = torch.stack([self.weights(noise_H, known_H) for known_H in patterns]).mean(0)
        error = self.embedding_covariance - self.cross_covariance.T @ explained_HE
        error = (error + error.T) / 2
        return error + _ERROR_SHRINK * error.diagonal().mean() * torch.eye(len(error)).to(error)
