"""transformers' Trainer trains the split model as it trains the unsplit one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from splitwire.errors import SettingsError
from tln.remote_optimizer import RemoteOptimizer
from tln.stack_settings import StackSettings

STACK = StackSettings(trainable="full")


def dataset() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    rows = [torch.randint(0, 256, (10,), generator=generator) for _ in range(16)]
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in rows]


def train(model: Any, folder: Path, callbacks: list[Any], **changes: Any) -> Any:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    options: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 5e-3,
        "max_grad_norm": 0.2,
        "lr_scheduler_type": "linear",
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "seed": 3,
        "dataloader_pin_memory": False,
    }
    arguments = TrainingArguments(**options | changes)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset(), callbacks=callbacks)
    trainer.train()
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_trainer_equals_the_unsplit_trainer(split: Callable[..., Any], tmp_path: Path, family: str) -> None:
    """Gradient accumulation, a schedule, and clipping by the norm over both nodes: same losses, same weights."""
    pair = split(family, "training", STACK)
    ours = train(pair.model, tmp_path / "split", [RemoteOptimizer(pair.crossing)])
    theirs = train(pair.whole, tmp_path / "whole", [])
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)
    torch.testing.assert_close(
        pair.model.tail.body.layers[0].mlp.up_proj.weight,
        pair.whole.model.layers[4].mlp.up_proj.weight,
        rtol=1e-3,
        atol=1e-4,
    )
    torch.testing.assert_close(
        pair.transport.stack._model.body.layers[1].self_attn.q_proj.weight,
        pair.whole.model.layers[3].self_attn.q_proj.weight,
        rtol=1e-3,
        atol=1e-4,
    )
    assert ours.args.max_grad_norm == 0.2, "the clipping was not given back"


def test_trainer_works_when_only_the_untrusted_node_trains(split: Callable[..., Any], tmp_path: Path) -> None:
    """Head and tail frozen, adapters there: the loss falls although no parameter here changes."""
    pair = split("llama", "training", StackSettings(trainable="lora"))
    pair.model.head.requires_grad_(False)
    pair.model.tail.requires_grad_(False)
    before = {name: value.clone() for name, value in pair.model.state_dict().items()}
    trainer = train(
        pair.model,
        tmp_path,
        [RemoteOptimizer(pair.crossing, clip="by_node")],
        max_steps=12,
        learning_rate=2e-2,
        lr_scheduler_type="constant",
    )
    assert losses(trainer)[-1] < losses(trainer)[0]
    assert all(torch.equal(value, before[name]) for name, value in pair.model.state_dict().items())
    assert pair.transport.log.count("optimizer_step") == 12


def test_trainer_saves_and_evaluates(split: Callable[..., Any], tmp_path: Path) -> None:
    """Checkpoints hold the local parts once, tied weights included, and evaluation asks for no graph."""
    pair = split("llama", "training", STACK)
    trainer = train(
        pair.model, tmp_path, [RemoteOptimizer(pair.crossing)], max_steps=2, save_strategy="steps", save_steps=2
    )
    pair.transport.log.clear()
    trainer.eval_dataset = dataset()[:4]
    assert trainer.evaluate()["eval_loss"] > 0
    assert "train" not in pair.transport.log
    saved = tmp_path / "checkpoint-2" / "model.safetensors"
    from safetensors.torch import load_file  # noqa: PLC0415

    names = set(load_file(saved))
    assert any(name.startswith("head.") for name in names)
    assert any(name.startswith("tail.body.") for name in names)


@pytest.mark.parametrize(
    ("change", "match"),
    [({"fp16": True}, "fp16"), ({"world_size": 2}, "2 processes"), ({"gradient_checkpointing": True}, "checkpointing")],
)
def test_arguments_that_would_cross_wrongly_are_refused(
    split: Callable[..., Any], change: dict[str, Any], match: str
) -> None:
    """A loss scale inside gradients, several trusted nodes, a forward pass that crosses twice."""
    callback = RemoteOptimizer(split("llama", "training", STACK).crossing)
    good = {"fp16": False, "world_size": 1, "gradient_checkpointing": False, "max_grad_norm": 1.0}
    with pytest.raises(SettingsError, match=match):
        callback.on_train_begin(SimpleNamespace(**good | change), None, None)


def test_a_session_for_inference_cannot_train(split: Callable[..., Any]) -> None:
    """Said before the first step."""
    arguments = SimpleNamespace(fp16=False, world_size=1, gradient_checkpointing=False, max_grad_norm=1.0)
    with pytest.raises(SettingsError, match="inference"):
        RemoteOptimizer(split("llama").crossing).on_train_begin(arguments, None, None)
