"""Requests and served layers for the stacks' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import MiddleModel, ModelSettings, load_middle
from splitwire.v1 import stack_pb2


@pytest.fixture
def middle_of(tiny_model: Callable[[str], Path]) -> Callable[..., MiddleModel]:
    """middle_of(family, first=2, last=5, dtype="fp32") -> freshly loaded layers."""

    def load(family: str, first: int = 2, last: int = 5, dtype: str = "fp32") -> MiddleModel:
        settings = ModelSettings(source=str(tiny_model(family)), first_layer=first, last_layer=last, dtype=dtype)  # type: ignore[arg-type]
        return load_middle(settings)

    return load


@pytest.fixture
def request_for() -> Callable[..., stack_pb2.OpenSessionRequest]:
    """request_for("inference" | "none" | "full" | "lora" | "gram", **fields) -> a request that open_stack accepts."""

    def build(kind: str, **fields: Any) -> stack_pb2.OpenSessionRequest:
        request = stack_pb2.OpenSessionRequest(
            stack_kind=stack_pb2.STACK_KIND_GRAM if kind == "gram" else stack_pb2.STACK_KIND_TRANSFORMER,
            mode=stack_pb2.SESSION_MODE_INFERENCE if kind == "inference" else stack_pb2.SESSION_MODE_TRAINING,
            compute_dtype=stack_pb2.WIRE_DTYPE_FP32,
        )
        if kind not in {"inference", "gram"}:
            request.trainable_scope = stack_pb2.TrainableScope.Value(f"TRAINABLE_SCOPE_{kind.upper()}")
        if kind in {"full", "lora", "gram"}:
            request.optimizer.CopyFrom(
                stack_pb2.OptimizerSettings(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0)
            )
        if kind == "lora":
            request.lora.CopyFrom(stack_pb2.LoraSettings(rank=4, alpha=8.0, target_modules=["q_proj", "v_proj"]))
        if kind == "gram":
            request.gram.CopyFrom(
                stack_pb2.GramSettings(width=16, num_experts=8, num_layers=2, radial=True, sign_invariant=False)
            )
        request.MergeFrom(stack_pb2.OpenSessionRequest(**fields))
        return request

    return build


@pytest.fixture
def rows() -> torch.Tensor:
    """[3, 12, 48] rows, the same every time."""
    return torch.randn(3, 12, 48, generator=torch.Generator().manual_seed(7))
