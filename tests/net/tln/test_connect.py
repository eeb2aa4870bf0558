"""The Python that docs/split-model.md shows, run as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.bundles import WireRecord
from splitwire.errors import SettingsError
from splitwire.settings import load_settings
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln import connect as connecting
from tln.settings import TlnSettings
from tln.transport import GrpcTransport

PAGE = Path(__file__).parents[3] / "docs" / "split-model.md"


@pytest.fixture
def settings_file(start_node: Callable[..., Any], pki: dict[str, TlsFiles], tmp_path: Path) -> Path:
    """tln.toml for a node over the tiny llama."""
    node, tls = start_node(), pki["tln"]
    file = tmp_path / "tln.toml"
    file.write_text(
        f'model = {{ source = "{node.settings.model.source}", first_layer = 2, last_layer = 4 }}\n'
        f'corpus = {{ path = "{tmp_path}" }}\n'
        f'train = {{ out = "{tmp_path / "out"}" }}\n'
        f'[connection]\naddress = "{node.settings.listen}"\n'
        f'tls = {{ ca = "{tls.ca}", certificate = "{tls.certificate}", key = "{tls.key}" }}\n'
    )
    return file


def test_the_documented_python_generates_and_trains(
    settings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: torch.Tensor
) -> None:
    """Both blocks, one after the other."""
    from transformers import TrainingArguments  # noqa: PLC0415

    monkeypatch.chdir(settings_file.parent)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {
        "input_ids": batch,
        "dataset": [{"input_ids": row, "labels": row} for row in batch],
        "arguments": TrainingArguments(
            output_dir=str(tmp_path / "trainer"),
            max_steps=2,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
    }
    for block in blocks:
        exec(block, names)  # noqa: S102 - our own page
    assert names["output"].shape[0] == 3


def test_leaving_the_block_frees_the_session(settings_file: Path) -> None:
    """Also when it is left with an error; a crossing of a session that is closed refuses."""
    settings = load_settings(TlnSettings, program="tln", file=settings_file, environment={})
    with pytest.raises(ZeroDivisionError), connecting.connect(settings) as split:
        raise ZeroDivisionError
    with pytest.raises(Exception, match="no session is open"), torch.no_grad():
        split.model(torch.tensor([[1, 2]]))


def test_the_defence_is_announced_before_anything_crosses(settings_file: Path) -> None:
    """What is announced is what the bundle and the session get."""
    pairs = [("frame.mechanisms", '["clip_noise"]')]
    settings = load_settings(TlnSettings, program="tln", file=settings_file, environment={}, overrides=pairs)
    seen: list[WireRecord] = []
    announced: list[Any] = []

    def announce(defence: Any) -> None:
        assert not seen
        announced.append(defence)

    transport = GrpcTransport(settings.connection, [seen.append])
    with connecting.connect(settings, transport=transport, announce=announce) as split, torch.no_grad():
        split.model(torch.tensor([[1, 2, 3]]))
    assert announced == [split.defence]
    assert list(split.defence["frame"]) == ["clip", "noise"]
    assert any(record.hop == channels_pb2.HOP_FORWARD for record in seen)


def test_a_loop_that_has_no_adversaries_does_not_claim_them(settings_file: Path) -> None:
    """Refused before anything is loaded or announced; nothing would train against them."""
    pairs = [("adversaries.heads", '["token"]')]
    settings = load_settings(TlnSettings, program="tln", file=settings_file, environment={}, overrides=pairs)
    announced: list[Any] = []
    with (
        pytest.raises(SettingsError, match="this training loop has none"),
        connecting.connect(settings, mode="training", announce=announced.append),
    ):
        pass
    assert announced == []
