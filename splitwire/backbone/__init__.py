"""Loading a causal language model and cutting it into head | middle | tail.

Importing this package is cheap: torch and transformers load with the first name that needs them, so settings and
command lines can use `ModelSettings` without the wait.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from splitwire.backbone.settings import EMBEDDED_MODEL, ModelSettings, default_cache_folder

if TYPE_CHECKING:
    from splitwire.backbone.digest import fingerprint, identity
    from splitwire.backbone.embedded import fetch_embedded
    from splitwire.backbone.families import FAMILIES
    from splitwire.backbone.loading import (
        load_config,
        load_generation_config,
        load_head,
        load_head_and_tail,
        load_middle,
        load_tail,
        load_tokenizer,
        load_whole,
        usable_device,
    )
    from splitwire.backbone.parts import BackbonePart, HeadModel, MiddleModel, TailModel
    from splitwire.backbone.ragged import RaggedInput, step_together, why_alone

_HOMES = {
    "fetch_embedded": "embedded",
    "FAMILIES": "families",
    "fingerprint": "digest",
    "identity": "digest",
    "load_config": "loading",
    "load_generation_config": "loading",
    "load_head": "loading",
    "load_head_and_tail": "loading",
    "load_middle": "loading",
    "load_tail": "loading",
    "load_tokenizer": "loading",
    "load_whole": "loading",
    "usable_device": "loading",
    "BackbonePart": "parts",
    "HeadModel": "parts",
    "MiddleModel": "parts",
    "TailModel": "parts",
    "RaggedInput": "ragged",
    "step_together": "ragged",
    "why_alone": "ragged",
}

__all__ = [
    "EMBEDDED_MODEL",
    "FAMILIES",
    "BackbonePart",
    "HeadModel",
    "MiddleModel",
    "ModelSettings",
    "RaggedInput",
    "TailModel",
    "default_cache_folder",
    "fetch_embedded",
    "fingerprint",
    "identity",
    "load_config",
    "load_generation_config",
    "load_head",
    "load_head_and_tail",
    "load_middle",
    "load_tail",
    "load_tokenizer",
    "load_whole",
    "step_together",
    "usable_device",
    "why_alone",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
