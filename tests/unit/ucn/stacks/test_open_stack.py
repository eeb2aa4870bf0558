"""Combinations that a stack cannot honour are refused when the session opens, naming the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from splitwire.backbone import MiddleModel
from splitwire.errors import HandshakeError
from splitwire.v1 import stack_pb2
from ucn.stacks import open_stack

MiddleOf = Callable[..., MiddleModel]
RequestFor = Callable[..., stack_pb2.OpenSessionRequest]

GRAM = {"width": 16, "num_experts": 8, "num_layers": 2}
OPTIMIZER = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("kind", "clear", "fields", "message"),
    [
        ("inference", ["stack_kind"], {}, "stack_kind"),
        ("inference", ["mode"], {}, "mode is not given"),
        ("inference", [], {"trainable_scope": 2}, "trainable_scope in an inference session"),
        ("inference", [], {"gram": GRAM}, "gram settings"),
        ("inference", [], {"lora": {"rank": 4}}, "lora settings and trainable_scope"),
        ("inference", [], {"compute_dtype": 2}, "compute_dtype is bf16"),
        ("full", ["trainable_scope"], {}, "without trainable_scope"),
        ("full", ["optimizer"], {}, "without optimizer"),
        ("lora", ["lora"], {}, "lora settings and trainable_scope"),
        ("lora", ["lora"], {"lora": {"rank": 0, "alpha": 1, "target_modules": ["q_proj"]}}, "lora.rank is 0"),
        ("lora", ["lora"], {"lora": {"rank": 49, "alpha": 1, "target_modules": ["q_proj"]}}, "lora.rank is 49"),
        ("lora", ["lora"], {"lora": {"rank": 4, "alpha": 0, "target_modules": ["q_proj"]}}, "lora.alpha"),
        ("lora", ["lora"], {"lora": {"rank": 4, "alpha": 1, "target_modules": ["lm_head"]}}, "target_modules"),
        ("lora", ["lora"], {"lora": {"rank": 4, "alpha": 1}}, "target_modules"),
        ("full", ["optimizer"], {"optimizer": {**OPTIMIZER, "beta1": 1.0}}, "optimizer.beta1"),
        ("full", ["optimizer"], {"optimizer": {**OPTIMIZER, "beta2": -0.1}}, "optimizer.beta2"),
        ("full", ["optimizer"], {"optimizer": {**OPTIMIZER, "epsilon": 0.0}}, "optimizer.epsilon"),
        ("full", ["optimizer"], {"optimizer": {**OPTIMIZER, "epsilon": 1e300}}, "optimizer.epsilon"),
        ("full", ["optimizer"], {"optimizer": {**OPTIMIZER, "weight_decay": 1e300}}, "optimizer.weight_decay"),
        ("full", ["optimizer"], {"optimizer": {**OPTIMIZER, "weight_decay": -1.0}}, "optimizer.weight_decay"),
        ("gram", [], {"mode": 1}, "not causal"),
        ("gram", [], {"trainable_scope": 2}, "trainable_scope"),
        ("gram", [], {"max_cache_positions": 8}, "KV cache"),
        ("gram", [], {"compute_dtype": 2}, "compute_dtype is bf16"),
        ("gram", ["gram"], {}, "without gram settings"),
        ("gram", ["optimizer"], {}, "without optimizer"),
        ("gram", ["gram"], {"gram": {**GRAM, "width": 0}}, "gram.width"),
        ("gram", ["gram"], {"gram": {**GRAM, "num_experts": 1000}}, "gram.num_experts"),
        ("gram", ["gram"], {"gram": {**GRAM, "num_layers": 17}}, "gram.num_layers"),
    ],
)
def test_refused(
    middle_of: MiddleOf, request_for: RequestFor, kind: str, clear: list[str], fields: dict[str, Any], message: str
) -> None:
    request = request_for(kind)
    for field in clear:
        request.ClearField(field)
    request.MergeFrom(stack_pb2.OpenSessionRequest(**fields))
    with pytest.raises(HandshakeError, match=message) as caught:
        open_stack(request, middle_of("llama"), "cpu", torch.float32)
    assert caught.value.remedy


def test_layers_are_needed_for_a_transformer_and_not_for_gram(request_for: RequestFor) -> None:
    with pytest.raises(HandshakeError, match="serves no model layers"):
        open_stack(request_for("inference"), None, "cpu", torch.float32)
    assert open_stack(request_for("gram"), None, "cpu", torch.float32).num_trainable_parameters == 161
