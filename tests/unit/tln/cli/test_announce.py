"""What `tln train` says of the defence before anything crosses."""

from __future__ import annotations

from typing import Any

import pytest

from tln.adversaries import AdversarySettings, describe_adversaries
from tln.cli.train import announce

HEADS = AdversarySettings(heads=("token",), warmup_steps=200)
GRADIENT = {"policy": "clip_noise", "clip_norm": 0.01}


def told(defence: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    announce({"gradient": GRADIENT, **defence})
    return capsys.readouterr().err


def test_every_part_of_the_defence_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Mechanisms, policy and adversaries by name, with their parameters, and no claim."""
    defence = {"frame": {"noise": {"sigma": 0.35}}, "adversaries": describe_adversaries(HEADS, 300)}
    lines = told(defence, capsys)
    assert "(no DP claim)" in lines
    assert "sigma=0.35" in lines
    assert "policy=clip_noise" in lines
    assert "steps_felt=100" in lines
    assert "NO " not in lines


@pytest.mark.parametrize(
    ("defence", "warning"),
    [
        ({"frame": {}}, "NO DEFENCE"),
        ({"frame": {"noise": {}}, "adversaries": describe_adversaries(HEADS, 200)}, "NO ADVERSARY ACTS"),
        ({"frame": {"noise": {}}, "gradient": {"policy": "open", "unsafe": True}}, "UNSAFE: gradient.policy"),
        ({"frame": {"decoys": {"kind": "published", "unsafe": True}}}, "UNSAFE: frame.decoys.kind"),
    ],
)
def test_what_protects_nothing_is_told_loudly(
    defence: dict[str, Any], warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty frame, adversaries that only warm up, raw gradients, and rows sent again."""
    assert warning in told(defence, capsys)
