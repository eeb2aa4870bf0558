"""A split model over a transport inside this process, with the untrusted node's real stacks behind it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import (
    ModelSettings,
    identity,
    load_config,
    load_generation_config,
    load_head_and_tail,
    load_middle,
    load_whole,
)
from splitwire.bundles import WireRecord
from splitwire.frames import FrameAssembler, encode_frame
from splitwire.v1 import channels_pb2, stack_pb2
from splitwire.wire import CHUNK_BYTES, session_hash
from tln.crossing import Crossing
from tln.exchanges import Route
from tln.model import SplitModelForCausalLM
from tln.pipeline import FramePipeline
from tln.session import open_crossing, session_request
from tln.stack_settings import StackSettings
from ucn.stacks import ForwardCall, open_stack

FIRST_LAYER, LAST_LAYER = 2, 4
_MODES = {
    stack_pb2.COMPUTE_MODE_EVALUATE: "evaluate",
    stack_pb2.COMPUTE_MODE_TRAIN: "train",
    stack_pb2.COMPUTE_MODE_CACHED: "cached",
}
_SIDES = {0: "", stack_pb2.PADDING_SIDE_LEFT: "left", stack_pb2.PADDING_SIDE_RIGHT: "right"}


class LoopbackTransport:
    """Answers an exchange by calling a stack. `mangle` may change an answer; `log` names what came."""

    def __init__(self, settings: ModelSettings) -> None:
        self.observers: list[Callable[[WireRecord], object]] = []
        self.session_hash = ""
        self.log: list[str] = []
        self.steps: list[int] = []
        self.mangle: Callable[[stack_pb2.ExchangeResponse], stack_pb2.ExchangeResponse] = lambda response: response
        self.is_closed = False
        self._settings = settings

    def open(self, request: stack_pb2.OpenSessionRequest) -> stack_pb2.OpenSessionResponse:
        middle = load_middle(self._settings)
        self.stack: Any = open_stack(request, middle, "cpu", middle.dtype)
        self._request = request
        session_id = secrets.token_hex(16)
        self.session_hash = session_hash(session_id)
        return stack_pb2.OpenSessionResponse(
            session_id=session_id,
            protocol_version=1,
            model=identity(self._settings),
            max_chunk_bytes=CHUNK_BYTES,
            max_frame_bytes=1 << 26,
            lease_seconds=60,
        )

    def exchange(self, messages: Sequence[bytes], route: Route, new_reader: Callable[[], Any]) -> Any:
        assembler, frame = FrameAssembler(), None
        for message in messages:
            request = stack_pb2.ExchangeRequest.FromString(message)
            if request.WhichOneof("payload") == "control":
                return self._read(new_reader(), [self._control(request.control)])
            frame = assembler.feed(request.frame)
        assert frame is not None
        if frame.header.hop == channels_pb2.HOP_FORWARD:
            tensor = self._forward(frame)
        else:
            self.log.append("backward")
            tensor = self.stack.backward(frame.header.step, frame.tensor)
        header = stack_pb2.FrameHeader(hop=route.reply_hop, step=frame.header.step, dtype=self._request.response_dtype)
        return self._read(
            new_reader(), [stack_pb2.ExchangeResponse.FromString(m) for m in encode_frame(header, tensor)]
        )

    def close(self) -> None:
        self.is_closed = True

    def _forward(self, frame: Any) -> torch.Tensor:
        header = frame.header
        mode = _MODES[header.compute_mode]
        self.log.append(mode)
        self.steps.append(header.step)
        call = ForwardCall(
            header.step,
            mode,
            header.cache_id,
            tuple(header.row_lengths),
            _SIDES[header.padding_side],  # type: ignore[arg-type]
        )
        with torch.enable_grad():  # the crossing calls from inside an autograd function, a server would not
            returned: torch.Tensor = self.stack.forward(frame.tensor, call)
        return returned

    def _control(self, control: stack_pb2.Control) -> stack_pb2.ExchangeResponse:
        action = control.WhichOneof("action")
        self.log.append(str(action))
        self.steps.append(control.step)
        result = stack_pb2.ControlResult(step=control.step)
        if action == "optimizer_step":
            step = control.optimizer_step
            result.squared_gradient_norm = self.stack.optimizer_step(
                step.learning_rate, step.gradient_scale, step.max_gradient_norm
            )
        elif action == "gradient_norm":
            result.squared_gradient_norm = self.stack.squared_gradient_norm()
        elif action == "cache_reorder":
            self.stack.cache_reorder(control.cache_reorder.cache_id, list(control.cache_reorder.indices))
        elif action == "cache_crop":
            self.stack.cache_crop(control.cache_crop.cache_id, control.cache_crop.num_positions)
        elif action == "cache_release":
            self.stack.cache_release(control.cache_release.cache_id)
        elif action == "discard_step":
            self.stack.discard(control.discard_step.train_step)
        elif action == "zero_grad":
            self.stack.zero_grad()
        return stack_pb2.ExchangeResponse(control_result=result)

    def _read(self, reader: Any, responses: Sequence[stack_pb2.ExchangeResponse]) -> Any:
        for response in responses:
            result = reader(self.mangle(response))
            if result is not None:
                return result
        raise AssertionError("the reader wants more than the answer has")


class Split:
    """A split model, the unsplit one of the same weights, and the transport between the parts."""

    def __init__(self, folder: Path, stack: StackSettings, mode: str, pipeline: FramePipeline | None) -> None:
        self.settings = ModelSettings(source=str(folder), first_layer=FIRST_LAYER, last_layer=LAST_LAYER)
        self.transport = LoopbackTransport(self.settings)
        self.whole = load_whole(self.settings)
        head, tail = load_head_and_tail(self.settings)
        request = session_request(stack, identity(self.settings), mode=mode)  # type: ignore[arg-type]
        self.crossing: Crossing = open_crossing(self.transport, request, policy=lambda gradient, _: gradient)
        self.model = SplitModelForCausalLM(
            load_config(self.settings),
            head,
            tail,
            self.crossing,
            pipeline=pipeline,
            generation_config=load_generation_config(self.settings),
            limits=stack,
        ).eval()


@pytest.fixture
def split(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Split]:
    """split(family, mode="inference", stack=..., pipeline=...) -> Split over tiny weights."""
    monkeypatch.setenv("SPLITWIRE_CACHE", str(tmp_path))

    def make(
        family: str,
        mode: str = "inference",
        stack: StackSettings = StackSettings(max_cache_positions=256),  # noqa: B008 - frozen
        pipeline: FramePipeline | None = None,
    ) -> Split:
        return Split(tiny_model(family), stack, mode, pipeline)

    return make


@pytest.fixture
def batch() -> torch.Tensor:
    """Token ids [3, 12] without special tokens."""
    return torch.randint(0, 256, (3, 12), generator=torch.Generator().manual_seed(7))
