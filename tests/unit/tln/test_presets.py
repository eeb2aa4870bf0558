"""Presets are complete defences that run on any depth, and say when they are unsafe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from splitwire.errors import SettingsError
from splitwire.settings import load_settings
from splitwire.tls import TlsFiles
from tln.connection import ConnectionSettings
from tln.presets import preset_file, preset_names
from tln.settings import TlnSettings, check_training_session

NAMES = ("ours", "published-mitigated", "published-naked", "published-open")


def _load(name: str, file: Path | None = None, overrides: tuple[tuple[str, str], ...] = ()) -> TlnSettings:
    base = preset_file(name)
    return load_settings(TlnSettings, program="tln", base=base, file=file, environment={}, overrides=overrides)


def test_the_four_presets_are_there() -> None:
    """The names of the documentation, and no other."""
    assert preset_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_accepted_as_it_stands(name: str) -> None:
    """With addresses and text added, nothing else has to be set for a training session."""
    settings = _load(name)
    tls = TlsFiles(ca="ca", certificate="certificate", key="key")
    connection = ConnectionSettings(address="127.0.0.1:1", tls=tls)
    check_training_session(replace(settings, connection=connection))


@pytest.mark.parametrize("name", NAMES)
def test_only_what_was_published_unsafe_is_unsafe(name: str) -> None:
    """One flag is in the presets that send raw gradients, one in those that re-send decoys, and in no other."""
    assert _load(name).gradient.unsafe == (name in {"published-open", "published-naked"})
    assert _load(name).frame.unsafe == (name in {"published-open", "published-mitigated"})


@pytest.mark.parametrize("num_layers", [8, 12, 18, 28, 30, 80])
@pytest.mark.parametrize("name", NAMES)
def test_presets_cut_any_backbone_of_eight_layers_or_more(name: str, num_layers: int) -> None:
    """Head, middle and tail keep a layer at every depth."""
    first, last = _load(name).model.layer_range(num_layers)
    assert 1 <= first < last <= num_layers - 1


def test_the_cut_is_that_of_the_paper_at_its_depth() -> None:
    """22 to 25 of 28 layers delegated, the topology of the published mitigation set."""
    assert _load("published-mitigated").model.layer_range(28) == (22, 26)


def test_later_layers_win_over_a_preset(tmp_path: Path) -> None:
    """A file beats the preset, an override beats both, and what neither names stays."""
    file = tmp_path / "tln.toml"
    file.write_text("[frame.decoys]\ncount = 12\n[frame.bottleneck]\nwidth = 32\n")
    settings = _load("ours", file, (("frame.bottleneck.width", "16"),))
    assert (settings.frame.decoys.count, settings.frame.bottleneck.width) == (12, 16)
    assert "rotation" in settings.frame.mechanisms


def test_an_unknown_preset_is_refused_by_name() -> None:
    """The error lists the presets that there are."""
    with pytest.raises(SettingsError, match="'theirs' is unknown") as caught:
        preset_file("theirs")
    assert "published-open" in str(caught.value)
