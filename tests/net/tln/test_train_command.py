"""`tln prepare` and `tln train` as a user runs them, against a real untrusted node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from splitwire.errors import SettingsError, SplitwireError
from splitwire.tls import TlsFiles
from tln.cli import app

MARKER = "numbat-marker-1414"
DOCUMENTS = 6


@pytest.fixture
def config(start_node: Callable[..., Any], pki: dict[str, TlsFiles], tmp_path: Path) -> Path:
    """A config file for the latent stack against a fresh node."""
    node = start_node()
    for name in ("private", "public"):
        (tmp_path / name).mkdir()
        for index in range(DOCUMENTS):
            (tmp_path / name / f"{index}.txt").write_text(f"{MARKER} {name} text number {index} for a test. " * 2)
    tls = pki["tln"]
    file = tmp_path / "tln.toml"
    file.write_text(
        f"""
[model]
source = "{node.settings.model.source}"
first_layer = 2
last_layer = 4
[connection]
address = "{node.settings.listen}"
tls = {{ ca = "{tls.ca}", certificate = "{tls.certificate}", key = "{tls.key}" }}
[stack]
kind = "gram"
[frame]
mechanisms = ["bottleneck", "clip_noise", "decoys", "permutation", "rotation"]
bottleneck = {{ width = 8 }}
decoys = {{ count = 6, pool_size = 60 }}
[gradient]
clip_multiple = 2.0
[corpus]
path = "{tmp_path / "private"}"
public_path = "{tmp_path / "public"}"
block_tokens = 8
[train]
steps = 2
frames_per_step = 3
max_evaluation_blocks = 4
"""
    )
    return file


@pytest.fixture(autouse=True)
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sets up the log of its process; here the process is the test's."""
    monkeypatch.setattr("splitwire.logging.configure", lambda _program: None)


def _tln(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_prepare_then_train(config: Path, tmp_path: Path) -> None:
    """Says what it prepared, the effective defence before anything crosses, and the gate at the end; never text."""
    prepared = _tln("prepare", "--config", config)
    assert prepared.exit_code == 0
    assert "6 documents" in prepared.stdout
    assert "fingerprint of the delegated layers: " in prepared.stdout
    trained = _tln("train", "--config", config, "--out", tmp_path / "out")
    assert trained.exit_code == 0
    assert trained.stderr.index("effective defence") < trained.stderr.index("training: 2 begins")
    for name in ("bottleneck", "clip", "decoys", "noise", "permutation", "rotation", "policy=clip_noise"):
        assert name in trained.stderr
    assert "utility gate" in trained.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text())["num_non_member_documents"] == 1
    assert MARKER not in prepared.output + trained.output


def test_the_open_gradient_is_loud(config: Path, tmp_path: Path) -> None:
    """Refused without the flag; with it, the warning comes first."""
    unsafe = ("--set", "gradient.policy=open", "--set", "gradient.clip_multiple=0.0")
    with pytest.raises(SettingsError, match="unsafe = true"):
        _tln("train", "--config", config, "--out", tmp_path / "out", *unsafe)
    _tln("prepare", "--config", config)
    trained = _tln("train", "--config", config, "--out", tmp_path / "out", *unsafe, "--set", "gradient.unsafe=true")
    assert trained.stderr.startswith("UNSAFE: gradient.policy is 'open'")


def test_settings_can_be_shown_without_a_run(config: Path) -> None:
    """Both commands show the effective settings with their hash and touch nothing."""
    for command in ("prepare", "train"):
        shown = _tln(command, "--config", config, "--print-settings")
        assert "frame.decoys.count = 6" in shown.stdout
        assert "# settings hash " in shown.stdout


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("frame.mechanisms=['bottleneck', 'decoys', 'permutation']", "without clip_noise"),
        ("frame.mechanisms=['bottleneck']", "configured but decoys is not"),
        ("stack.kind=transformer", "bottleneck is refused on the transformer stack"),
        ("corpus.holdout_ratio=2.0", "holdout_ratio is 2.0"),
        ("loss.cross_entropy=-1.0", "cross_entropy is -1.0"),
        ("train.stepz=3", "unknown key train.stepz"),
        ("model.last_layer=6", "model cut impossible"),
    ],
)
def test_wrong_settings_end_in_one_message(config: Path, tmp_path: Path, option: str, named: str) -> None:
    """The message names the setting, before anything crosses and before any file is written."""
    with pytest.raises(SplitwireError, match=named):
        _tln("train", "--config", config, "--out", tmp_path / "out", "--set", option)
    assert not (tmp_path / "out").exists()
