"""Presets: named defences as TOML beside this file, under a user's own settings. `tln train --preset NAME` takes one.

    published-open        the frame of Privacy Failure in Split-LLM Training, gradients raw, as published; unsafe
    published-mitigated   the same frame, every gradient row clipped and noised
    published-naked       its control: a latent frame without any protection, gradients raw; unsafe
    ours                  what this project proposes at the same cut

A preset says what crosses and how it is protected, and cuts the model by fractions of its depth, so it runs on any
backbone of eight layers or more. It names no text, address or folder. Later layers (--config, environment, --set) win
over it, setting by setting. Refused: an unknown name.
"""

from __future__ import annotations

from pathlib import Path

from splitwire.errors import SettingsError

_FOLDER = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


def preset_file(name: str) -> Path:
    """The TOML file of a preset; SettingsError for an unknown name."""
    if name not in preset_names():
        raise SettingsError(f"preset {name!r} is unknown", remedy=f"use {', '.join(preset_names())}")
    return _FOLDER / f"{name}.toml"
