"""A whole text of an inference bundle: prompt and answer, in the sealed truth beside the records of the frames.

The truth of a frame tells the token of each wire row. What no row tells is the last token of an answer, which never
goes through the model, and where the prompt ends. Shapes: T tokens. Never leaves the trusted host unsealed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy


@dataclass(frozen=True, eq=False)
class TextTruth:
    """One text that was generated: `tokens` int32 [T], of which the first `num_prompt` are the prompt.

    `document` is its index into the documents table. `tokens[t]` is the token of the wire row with this document and
    order t, and `tokens[t + 1]` its label.
    """

    document: int
    num_prompt: int
    tokens: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        """ValueError unless types and numbers fit. Tells shapes, never values."""
        if self.tokens.ndim != 1 or self.tokens.dtype != np.int32:
            raise ValueError(f"tokens is {self.tokens.dtype} {list(self.tokens.shape)}, expected int32 [T]")
        if self.document < 0 or not 1 <= self.num_prompt <= len(self.tokens):
            raise ValueError(f"document {self.document} with {self.num_prompt} of {len(self.tokens)} tokens")

    def head(self) -> dict[str, int]:
        """What is stored as JSON."""
        return {"document": self.document, "num_prompt": self.num_prompt}

    def arrays(self) -> bytes:
        """What is stored as safetensors."""
        return safetensors.numpy.save({"tokens": np.ascontiguousarray(self.tokens)})


def read_text(head: Mapping[str, Any], arrays: bytes) -> TextTruth:
    """The text of one record; KeyError, TypeError, ValueError or SafetensorError when it is malformed."""
    tokens = safetensors.numpy.load(arrays)["tokens"]
    return TextTruth(int(head["document"]), int(head["num_prompt"]), tokens)
