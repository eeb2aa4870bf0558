"""A trusted node refuses settings that would weaken, contradict or idle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitwire.backbone import ModelSettings
from splitwire.errors import SettingsError
from splitwire.settings import load_settings
from splitwire.tls import TlsFiles
from tln.connection import ConnectionSettings
from tln.gradient_policy import GradientSettings
from tln.mechanisms.decoys import DecoySettings
from tln.pipeline import FrameSettings
from tln.ratchet import KeySettings
from tln.recording import RecordSettings
from tln.settings import TlnSettings, check_generation, check_training
from tln.stack_settings import GramStackSettings, LoraSettings, StackSettings
from tln.training.corpus import CorpusSettings
from tln.training.settings import PrepareSettings, TrainSettings

TLS = TlsFiles(Path("ca"), Path("certificate"), Path("key"))
GOOD = TlnSettings(
    connection=ConnectionSettings(tls=TLS), corpus=CorpusSettings(path="text"), train=TrainSettings(out="out")
)
REENCODED = FrameSettings(
    mechanisms=("bottleneck", "clip_noise", "decoys", "permutation"), decoys=DecoySettings(kind="reencoded")
)
TRAINED_HEAD = TrainSettings(out="out", train_head=True)
GAUGED = FrameSettings(mechanisms=("bottleneck", "scale_sign"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"stack": StackSettings(kind="gram")}, "not causal"),
        ({"stack": StackSettings(resume_checkpoint="x")}, "resume_checkpoint"),
        ({"frame": FrameSettings(mechanisms=("clip_noise", "decoys"))}, "decoys"),
        ({"frame": FrameSettings(mechanisms=("permutation",))}, "permutation"),
        ({"connection": ConnectionSettings()}, "connection.tls"),
        ({"stack": StackSettings(max_cache_positions=-1)}, "stack.max_cache_positions is -1"),
        ({"stack": StackSettings(max_cache_sequences=2**31)}, "stack.max_cache_sequences is 2147483648"),
    ],
)
def test_what_cannot_generate_is_refused(changes: dict[str, Any], match: str) -> None:
    """Before anything is loaded."""
    check_generation(GOOD)
    with pytest.raises(SettingsError, match=match):
        check_generation(replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"stack": StackSettings(gram=GramStackSettings(num_layers=3))}, "stack.gram is configured"),
        ({"stack": StackSettings(trainable="full", lora=LoraSettings(rank=4))}, "stack.lora is configured"),
        ({"stack": StackSettings(kind="gram", trainable="full")}, "stack.trainable"),
        ({"stack": StackSettings(kind="gram"), "model": ModelSettings(dtype="bf16")}, "model.dtype"),
        ({"stack": StackSettings(kind="gram")}, "bottleneck"),
        ({"keys": KeySettings(ratchet_steps=-1)}, "ratchet_steps is -1"),
        (
            {"keys": KeySettings(ratchet_steps=8), "train": TrainSettings(out="out", checkpoint_every=5)},
            "a checkpoint keeps the run key",
        ),
        ({"stack": StackSettings(kind="gram"), "frame": GAUGED}, "stack.gram.radial = true"),
        (
            {"stack": StackSettings(kind="gram", gram=GramStackSettings(radial=False)), "frame": GAUGED},
            "stack.gram.sign_invariant = false",
        ),
        ({"stack": StackSettings(lora=LoraSettings(rank=-1))}, "stack.lora.rank is -1"),
        ({"frame": FrameSettings(mechanisms=("rotation",))}, "rotation"),
        ({"train": TrainSettings(out="out", frames_per_step=10**9)}, "frames_per_step is 1000000000"),
        (
            {"train": TrainSettings(out="out", remote_checkpoint="../../etc")},
            "remote_checkpoint '../../etc' is no label",
        ),
        ({"prepare": PrepareSettings(batch_blocks=0)}, "batch_blocks is 0"),
        ({"gradient": GradientSettings("matched")}, "gradient.policy 'matched' is about decoys"),
        ({"gradient": GradientSettings("replay", unsafe=True)}, "unsafe is set and the policy is 'replay'"),
        ({"stack": StackSettings(kind="gram"), "frame": REENCODED, "train": TRAINED_HEAD}, "of an older head"),
        ({"record": RecordSettings(folder="out")}, "train.out out is in record.folder out"),
        (
            {"record": RecordSettings(folder="new"), "train": TrainSettings(out="new/out")},
            "train.out new/out is in record.folder new",
        ),
        ({"connection": ConnectionSettings(tls=TLS, address="nohost")}, "address 'nohost' is not host:port"),
    ],
)
def test_what_cannot_train_or_would_be_without_effect_is_refused(changes: dict[str, Any], match: str) -> None:
    """A setting that claims something which is off must fail."""
    check_training(GOOD)
    with pytest.raises(SettingsError, match=match):
        check_training(replace(GOOD, **changes))


def test_sections_are_read_from_a_file_and_the_environment(tmp_path: Path) -> None:
    """Nested sections, optional ones included."""
    file = tmp_path / "tln.toml"
    file.write_text(
        '[connection]\naddress = "node:1"\n[connection.tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
        '[stack]\nrequest_dtype = "bf16"\n[stack.lora]\nrank = 4\n'
    )
    settings = load_settings(
        TlnSettings, program="tln", file=file, environment={"SPLITWIRE_TLN__STACK__LORA__ALPHA": "2"}
    )
    assert settings.connection.tls == TlsFiles(Path("a"), Path("b"), Path("c"))
    assert settings.stack.request_dtype == "bf16"
    assert settings.stack.lora == LoraSettings(rank=4, alpha=2.0)


@pytest.mark.parametrize("name", ["connect_timeout_seconds", "step_timeout_seconds", "retry_seconds"])
def test_times_are_positive(name: str) -> None:
    """Named in the message."""
    times: dict[str, Any] = {name: 0.0}
    with pytest.raises(SettingsError, match=name):
        ConnectionSettings(**times)
    with pytest.raises(SettingsError, match="retry_attempts"):
        ConnectionSettings(retry_attempts=-1)
