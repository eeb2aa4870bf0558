"""How near the meaning of a guess is to that of the truth: the cosine of two sentence embeddings.

The model comes from a local folder that the plan names (`inversion.embedding_model`): nothing is fetched. Embeddings
are the mean of the last hidden states, as sentence-transformers makes them. Without a folder there is no such metric.

Shapes: T tokens, H width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from splitwire.errors import ModelError

NOT_AVAILABLE = "not available: inversion.embedding_model names no local folder"


class SentenceEmbedder:
    """A local model of sentence embeddings; ModelError when the folder holds none."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - slow to load, and seldom needed

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"inversion.embedding_model: {folder} holds no model that can be loaded ({type(error).__name__})",
                remedy="give a folder with config.json, tokenizer and safetensors, or leave it empty",
            ) from None
        self._model.eval()

    def similarity(self, guessed: str, true: str) -> float:
        """Cosine in -1 to 1; 0 where one of them is empty."""
        if not guessed.strip() or not true.strip():
            return 0.0
        return float(torch.cosine_similarity(self._embed(guessed), self._embed(true), dim=0))

    @torch.no_grad()
    def _embed(self, text: str) -> torch.Tensor:
        inputs = self._tokenizer(text, return_tensors="pt", truncation=True, verbose=False)
        hidden_TH: torch.Tensor = self._model(**inputs).last_hidden_state[0]
        return hidden_TH.mean(0)
