"""Over real gRPC with mutual TLS, the split model with defences off is the unsplit model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.bundles import WireRecord
from splitwire.v1 import channels_pb2
from tln.remote_optimizer import RemoteOptimizer
from tln.stack_settings import StackSettings

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("family", FAMILIES)
def test_64_greedy_tokens_are_identical(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor, family: str
) -> None:
    """Left-padded prompts, KV caches in three places, every decode step one row a sequence."""
    link = connect(start_node(family))
    mask = torch.ones_like(batch)
    mask[1, :5] = 0
    options = {"attention_mask": mask, "max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False}
    ours = link.split_model().generate(batch, **options)
    assert torch.equal(ours, link.whole_model().generate(batch, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_equal(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor, family: str
) -> None:
    """Gradients of head and tail by parameter, those of the middle by their norm."""
    link = connect(start_node(family), "training", StackSettings(trainable="full"))
    split, whole = link.split_model(), link.whole_model()
    loss, expected = split(batch, labels=batch).loss, whole(batch, labels=batch).loss
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    embedding = whole.get_input_embeddings().weight
    torch.testing.assert_close(split.head.embedding.weight.grad, embedding.grad, **TOLERANCE)
    layers = whole.transformer.h if family == "gpt2" else whole.model.layers
    middle = sum(float(p.grad.square().sum()) for layer in layers[2:4] for p in layer.parameters())
    assert link.crossing.squared_gradient_norm() == pytest.approx(middle, rel=1e-4)


def test_beam_search_and_sampling_are_identical(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor
) -> None:
    """With the same seed."""
    link = connect(start_node())
    split, whole = link.split_model(), link.whole_model()
    for options in ({"num_beams": 3, "do_sample": False}, {"do_sample": True, "temperature": 0.8}):
        results = []
        for model in (split, whole):
            torch.manual_seed(3)
            results.append(model.generate(batch, max_new_tokens=16, **options))
        assert torch.equal(*results)


def test_only_declared_fields_cross_and_decode_sends_one_row_a_sequence(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor
) -> None:
    """What an observer of the wire sees of a generation: rows, lengths and cache numbers; one row a sequence a step."""
    seen: list[WireRecord] = []
    link = connect(start_node(), observers=(seen.append,))
    mask = torch.ones_like(batch)
    mask[2, :4] = 0
    link.split_model().generate(batch, attention_mask=mask, max_new_tokens=5, min_new_tokens=5)
    from splitwire.v1 import stack_pb2  # noqa: PLC0415

    forward = [
        stack_pb2.ExchangeRequest.FromString(record.message).frame.header
        for record in seen
        if record.hop == channels_pb2.HOP_FORWARD
    ]
    assert [list(header.shape[:2]) for header in forward] == [[3, 12], [3, 1], [3, 1], [3, 1], [3, 1]]
    assert list(forward[0].row_lengths) == [12, 12, 8]
    assert not any(header.row_lengths for header in forward[1:])
    kinds = {(record.kind, record.direction) for record in seen}
    assert ("OpenSessionRequest", "request") in kinds
    assert {record.session_hash for record in seen} == {link.transport.session_hash}
    assert ("ExchangeResponse", "response") in kinds


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "int8"])
def test_narrow_wire_dtypes_shrink_the_payload_and_stay_near(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor, dtype: str
) -> None:
    """The dtype took effect on the bytes, and the logits are near those of the unsplit model."""
    sizes = {}
    for name in ("fp32", dtype):
        seen: list[WireRecord] = []
        link = connect(
            start_node(), stack=StackSettings(request_dtype=name, response_dtype=name), observers=(seen.append,)
        )
        with torch.no_grad():
            logits = link.split_model()(batch).logits
        sizes[name] = sum(len(record.message) for record in seen if record.hop == channels_pb2.HOP_FORWARD)
    with torch.no_grad():
        expected = link.whole_model()(batch).logits
    assert sizes[dtype] < 0.6 * sizes["fp32"]
    assert 0 < float((logits - expected).abs().max()) < 0.1 * float(expected.abs().max())


def test_trainer_over_the_wire_equals_the_unsplit_trainer(
    start_node: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    """transformers' Trainer unchanged, with one callback that keeps the other node's optimizer in step."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    link = connect(start_node(), "training", StackSettings(trainable="full"))
    generator = torch.Generator().manual_seed(11)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 256, (12, 10), generator=generator)]
    logs = []
    for model, callbacks in (
        (link.split_model(), [RemoteOptimizer(link.crossing)]),
        (link.whole_model(), []),
    ):
        arguments = TrainingArguments(
            output_dir=str(tmp_path / type(model).__name__),
            max_steps=3,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=5e-3,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)
        trainer.train()
        logs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)
