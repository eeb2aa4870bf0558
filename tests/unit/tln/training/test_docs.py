"""The examples of docs/training.md are settings that train."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitwire.settings import load_settings
from tln.connect import frame_pipeline
from tln.keys import FrameKeys, RunKey
from tln.settings import TlnSettings, check_training

PAGE = Path(__file__).parents[4] / "docs" / "training.md"
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_page_has_an_example_for_each_stack() -> None:
    """One latent, one wide."""
    assert ['kind = "gram"' in example for example in EXAMPLES] == [True, False]


@pytest.mark.parametrize("example", EXAMPLES, ids=["latent", "wide"])
def test_an_example_is_accepted_as_it_stands(example: str, tmp_path: Path) -> None:
    """Every key is known, the combination is not refused, and every mechanism it names is built."""
    file = tmp_path / "tln.toml"
    file.write_text(example)
    settings = load_settings(TlnSettings, program="tln", file=file, environment={}, overrides=[("train.out", "run")])
    check_training(settings)
    run_key = RunKey.generate()
    built = frame_pipeline(settings, FrameKeys(run_key), run_key, 576).describe()
    assert len(built) == len(settings.frame.mechanisms) + 1  # clip_noise is two steps
