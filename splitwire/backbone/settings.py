"""Which model, where it is cut, and in which dtype and on which device its parts live.

    head = embedding and layers [0, first_layer)      trusted node
    middle = layers [first_layer, last_layer)         untrusted node
    tail = layers [last_layer, N), final norm, lm_head   trusted node

An integer is a layer number; a number strictly between 0 and 1 is a fraction of the depth, rounded to the nearest
layer. Refused with ModelError: a head, middle or tail without a layer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from splitwire.errors import ModelError

EMBEDDED_MODEL = "smollm2-135m-instruct"
"""The one model that needs no hub: `splitwire fetch` puts it into the cache."""

CACHE_VARIABLE = "SPLITWIRE_CACHE"


@dataclass(frozen=True)
class ModelSettings:
    """A causal language model and its cut. Both sides hold these; the handshake compares what follows from them.

    `source` is a local folder, a .gguf file, a hub id, or the embedded model's name. `gguf_file` names a file inside
    a folder or hub repository. `cache_dir` holds converted checkpoints; empty means $SPLITWIRE_CACHE or
    ~/.cache/splitwire.
    """

    source: str = EMBEDDED_MODEL
    """A local folder, a .gguf file, a hub id, or the embedded model's name."""
    revision: str = ""
    """Branch, tag or commit of a hub id; empty for its default."""
    gguf_file: str = ""
    """Name of a .gguf file inside a folder or hub repository."""
    first_layer: int | float = 0.2
    """First delegated layer, at least 1: a layer number, or a fraction of the depth."""
    last_layer: int | float = 0.8
    """End of the delegated layers, exclusive: a layer number, or a fraction of the depth."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype in which the parts are held and computed."""
    device: str = "cpu"
    """Device of torch, such as cpu or cuda:0."""
    cache_dir: str = ""
    """Folder of converted checkpoints; empty for $SPLITWIRE_CACHE, else ~/.cache/splitwire."""

    def layer_range(self, num_layers: int) -> tuple[int, int]:
        """The delegated layers [first, last) of `num_layers`; ModelError when the cut is impossible."""
        first = _layer_number("first_layer", self.first_layer, num_layers)
        last = _layer_number("last_layer", self.last_layer, num_layers)
        if not 1 <= first < last <= num_layers - 1:
            raise ModelError(
                f"model cut impossible: first_layer {first}, last_layer {last}, layers {num_layers}",
                remedy=f"choose 1 <= first_layer < last_layer <= {num_layers - 1}, so that each part has a layer",
            )
        return first, last

    def cache_folder(self) -> Path:
        """The folder for converted checkpoints and fingerprints; it may not exist yet."""
        return Path(self.cache_dir) if self.cache_dir else default_cache_folder()


def default_cache_folder() -> Path:
    """$SPLITWIRE_CACHE, else ~/.cache/splitwire."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "splitwire")


def _layer_number(name: str, value: float, num_layers: int) -> int:
    if isinstance(value, int):
        return value
    if not 0.0 < value < 1.0:
        raise ModelError(
            f"{name} {value} is not a fraction of the depth",
            remedy="write a layer number such as 6, or a number between 0 and 1 such as 0.2",
        )
    return round(value * num_layers)
