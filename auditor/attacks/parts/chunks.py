"""Log-probabilities of many rows over many classes, a part at a time, so that they need not fit memory together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

SCORE_LOGITS = 1 << 21  # logits in memory at once


@torch.no_grad()
def log_probability_chunks(
    num_rows: int, num_classes: int, logits_of: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Positions [n] and log-probabilities [n, C], chunk by chunk; `logits_of` gives the logits of positions [n]."""
    for positions in torch.split(torch.arange(num_rows), max(1, SCORE_LOGITS // max(1, num_classes))):
        yield positions.numpy(), logits_of(positions).log_softmax(-1).cpu().numpy()
