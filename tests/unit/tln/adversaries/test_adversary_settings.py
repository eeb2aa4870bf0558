"""A section that claims something which is off, or cannot be, is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from splitwire.errors import SettingsError
from tln.adversaries import AdversarySettings, check_adversaries, describe_adversaries
from tln.adversaries.labels import token_table
from tln.context import NO_LABEL

GRAM = ("bottleneck", "clip_noise")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"heads": ("token", "topic")}, "'topic' which is unknown"),
        ({"heads": ("token", "token")}, "'token' twice"),
        ({"heads": ("token",), "strength": 0.0}, "strength is 0.0"),
        ({"heads": ("token",), "strength": float("inf")}, "strength is inf"),
        ({"heads": ("token",), "learning_rate": float("nan")}, "learning_rate is nan"),
        ({"heads": ("token",), "updates": 0}, "updates is 0"),
        ({"heads": ("token",), "hidden_width": 1}, "hidden_width is 1"),
        ({"heads": ("token",), "warmup_steps": -1}, "warmup_steps is -1"),
        ({"heads": ("token",), "token_classes": -5}, "token_classes is -5"),
        ({"mine_weight": -0.1}, "mine_weight is -0.1"),
        ({"gram_weight": float("inf")}, "gram_weight is inf"),
        ({"strength": 2.0}, "strength is configured and no adversary is on"),
        ({"gram_weight": 1.0, "updates": 5}, "updates is configured and no adversary is on"),
    ],
)
def test_what_is_out_of_range_or_idle_is_refused(changes: dict[str, Any], match: str) -> None:
    """The message names the field and the value."""
    with pytest.raises(SettingsError, match=match):
        check_adversaries(AdversarySettings(**changes), GRAM)


@pytest.mark.parametrize("changes", [{"heads": ("token",)}, {"mine_weight": 0.1}, {"gram_weight": 1.0}])
def test_without_a_private_encoder_there_is_nothing_to_train(changes: dict[str, Any]) -> None:
    """On the transformer stack frozen rows cross; pressure on them would be a claim without effect."""
    settings = AdversarySettings(**changes)
    check_adversaries(settings, GRAM)
    with pytest.raises(SettingsError, match="bottleneck"):
        check_adversaries(settings, ("clip_noise",))


def test_the_effective_defence_names_what_is_on_and_what_is_no_certificate() -> None:
    """Nothing when off; MINE never without its caveat."""
    assert describe_adversaries(AdversarySettings(), num_steps=300) == {}
    described = describe_adversaries(AdversarySettings(heads=("token", "property"), mine_weight=0.1), num_steps=300)
    assert described["heads"] == "property, token"
    assert "no certificate" in str(described["mine"])
    assert "gram_weight" not in described


@pytest.mark.parametrize(("num_steps", "felt"), [(100, 0), (200, 0), (201, 1)])
def test_the_effective_defence_tells_in_how_many_steps_the_encoder_feels_them(num_steps: int, felt: int) -> None:
    """None of a run that ends within the warm-up; what needs no warm-up is not counted."""
    described = describe_adversaries(AdversarySettings(heads=("token",), warmup_steps=200), num_steps)
    assert described["steps_felt"] == felt
    assert "steps_felt" not in describe_adversaries(AdversarySettings(gram_weight=0.1), num_steps)


def test_frequent_tokens_have_classes_and_the_others_share_one() -> None:
    """Ties go to the lower token; rows without a label count for nothing."""
    labels = torch.tensor([[3, 3, 3, NO_LABEL], [1, 1, 5, 7]])
    table = token_table(labels, vocabulary_size=9, most=2)
    assert table.num_classes == 3
    assert table.classes.tolist() == [2, 1, 2, 0, 2, 2, 2, 2, 2]
    assert table.rare.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert token_table(labels, vocabulary_size=9, most=0).num_classes == 5
