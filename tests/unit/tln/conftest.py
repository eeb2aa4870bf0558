"""What the tests of the trusted node share: keys with a bound scope, inputs of mechanisms, contexts with truth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tln.context import StepContext
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs, StackName

MakeInputs = Callable[..., MechanismInputs]
MakeContext = Callable[..., StepContext]


@pytest.fixture
def frame_keys() -> FrameKeys:
    """Streams of a fixed run key under a bound scope."""
    return FrameKeys(RunKey(bytes(range(32))), "test")


@pytest.fixture
def mechanism_inputs(frame_keys: FrameKeys) -> MakeInputs:
    """mechanism_inputs(stack="gram", hidden_width=12, block_tokens=4)."""

    def make(stack: StackName = "gram", hidden_width: int = 12, block_tokens: int = 4) -> MechanismInputs:
        return MechanismInputs(stack, hidden_width, block_tokens, frame_keys, torch.Generator().manual_seed(1))

    return make


@pytest.fixture
def step_context() -> MakeContext:
    """step_context(step, num, length, mode="train") with tokens 100 b + t and one document a sequence."""

    def make(step: int, num: int, length: int, mode: str = "train") -> StepContext:
        tokens = 100 * torch.arange(num).unsqueeze(1) + torch.arange(length)
        return StepContext(step, mode=mode, tokens=tokens, labels=tokens + 1, documents=torch.arange(num))  # type: ignore[arg-type]

    return make
