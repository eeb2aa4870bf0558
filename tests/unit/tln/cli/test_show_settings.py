"""`--print-settings` shows what is in effect and says what the command would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from splitwire.errors import SettingsError
from tln.cli import app

LOOPBACK = ("--set", "connection.insecure_loopback=true")


def tln(*arguments: str) -> Result:
    """The command with its errors raised, as the console gets them."""
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("command", ["prepare", "train", "generate"])
def test_settings_that_could_run_are_shown(command: str) -> None:
    """Text and folder may be named later."""
    shown = tln(command, *LOOPBACK, "--print-settings")
    assert shown.exit_code == 0
    assert "train.steps = 100" in shown.stdout


@pytest.mark.parametrize(
    ("command", "setting", "told"),
    [
        ("prepare", "prepare.batch_blocks=0", "prepare.batch_blocks is 0"),
        ("prepare", "corpus.holdout_ratio=2.0", "corpus.holdout_ratio is 2.0"),
        ("train", "train.steps=0", "train.steps is 0"),
        ("train", "train.learning_rate=-1.0", "train.learning_rate is -1.0"),
        ("generate", "stack.kind=gram", "cannot generate"),
    ],
)
def test_what_would_be_refused_is_refused(command: str, setting: str, told: str) -> None:
    """A range, or a contradiction, by its name."""
    with pytest.raises(SettingsError, match=told):
        tln(command, *LOOPBACK, "--set", setting, "--print-settings")


@pytest.mark.parametrize("wire", ["true", "false"])
def test_a_used_folder_for_the_recording_is_told_before_the_text_is_read(tmp_path: Path, wire: str) -> None:
    """The text does not exist either, and reading it comes later."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    pairs = [
        f"record.folder={tmp_path / 'used'}",
        f"record.wire={wire}",
        f"record.audit_key={tmp_path / 'audit.pub'}",
        f"corpus.path={tmp_path / 'nowhere'}",
        f"train.out={tmp_path / 'out'}",
    ]
    with pytest.raises(SettingsError, match=r"record.folder .* is not empty"):
        tln("train", *LOOPBACK, *(word for pair in pairs for word in ("--set", pair)))
    assert not (tmp_path / "out").exists()
