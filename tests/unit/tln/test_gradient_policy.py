"""What leaves as a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from splitwire.errors import SettingsError
from tln.context import StepContext
from tln.gradient_policy import GradientSettings, build_gradient_policy, decoy_loss
from tln.keys import FrameKeys


def _gradient() -> torch.Tensor:
    gradient = torch.randn(4, 10, 8)
    gradient[:, 6:] = 0
    return gradient


def test_open_needs_the_flag(frame_keys: FrameKeys) -> None:
    """The published behaviour is available only on purpose."""
    with pytest.raises(SettingsError, match="unsafe = true"):
        build_gradient_policy(GradientSettings(policy="open"), frame_keys)


def test_open_sends_the_raw_gradient(frame_keys: FrameKeys) -> None:
    """Decoy rows exactly zero, as published, and described as unsafe."""
    policy = build_gradient_policy(GradientSettings(policy="open", unsafe=True), frame_keys)
    gradient = _gradient()
    assert torch.equal(policy(gradient, StepContext(1)), gradient)
    assert policy.describe() == {"policy": "open", "unsafe": True}


def test_clip_noise_leaves_no_zero_row(frame_keys: FrameKeys) -> None:
    """Every row is changed, rows without loss too, at the stated scale."""
    policy = build_gradient_policy(GradientSettings(clip_norm=0.01, noise_multiplier=0.35), frame_keys)
    sent = policy(_gradient() * 1e6, StepContext(1))
    assert sent.any(dim=-1).all()
    assert sent[:, 6:].std().item() == pytest.approx(0.0035, rel=0.15)
    assert sent.norm(dim=-1).max() < 0.05


def test_the_noise_is_fresh_and_repeatable(frame_keys: FrameKeys) -> None:
    """Another step, other noise; the same step, the same bytes."""
    policy, gradient = build_gradient_policy(GradientSettings(), frame_keys), _gradient()
    first, again, other = (policy(gradient, StepContext(step)) for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_forward_and_gradient_noise_differ(frame_keys: FrameKeys) -> None:
    """The same noise on both hops of a step would cancel out."""
    forward = frame_keys.stream(1, "forward-noise").normals(100)
    assert abs((forward * frame_keys.stream(1, "gradient-noise").normals(100)).mean()) < 0.5


def test_the_clip_may_be_a_multiple_of_a_public_median(frame_keys: FrameKeys) -> None:
    """The effective clip is what is described."""
    policy = build_gradient_policy(GradientSettings(clip_multiple=2.0), frame_keys, 0.005)
    assert policy.describe() == {"policy": "clip_noise", "clip_norm": 0.01, "sigma": pytest.approx(0.0035)}


@pytest.mark.parametrize("name", ["matched", "replay"])
def test_policies_that_give_decoys_something_to_bear_clip_and_noise_as_well(frame_keys: FrameKeys, name: Any) -> None:
    """The same bytes as clip_noise from the same gradient, under a name of their own."""
    policy = build_gradient_policy(GradientSettings(name, clip_multiple=2.0), frame_keys, 0.005)
    plain = build_gradient_policy(GradientSettings(clip_multiple=2.0), frame_keys, 0.005)
    assert policy.describe() == {**plain.describe(), "policy": name}
    gradient = _gradient()
    assert torch.equal(policy(gradient, StepContext(1)), plain(gradient, StepContext(1)))
    assert decoy_loss(GradientSettings(name)) == name
    assert decoy_loss(GradientSettings()) == "none"


@pytest.mark.parametrize("median", [None, 0.0, float("nan")])
def test_a_multiple_needs_a_public_calibration(frame_keys: FrameKeys, median: float | None) -> None:
    """Never a clip from nothing, and never from private gradients."""
    with pytest.raises(SettingsError, match="public text"):
        build_gradient_policy(GradientSettings(clip_multiple=2.0), frame_keys, median)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (GradientSettings(clip_norm=0.0), r"gradient\.clip_norm is 0\.0"),
        (GradientSettings(noise_multiplier=0.0), r"gradient\.noise_multiplier is 0\.0"),
        (GradientSettings(clip_multiple=-1.0), r"gradient\.clip_multiple is -1\.0"),
        (GradientSettings(unsafe=True), "unsafe is set"),
    ],
)
def test_unusable_settings_are_named(frame_keys: FrameKeys, settings: GradientSettings, named: str) -> None:
    """Field and value, and what to do."""
    with pytest.raises(SettingsError, match=named):
        build_gradient_policy(settings, frame_keys)
