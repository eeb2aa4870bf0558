"""Real servers on loopback with mutual TLS, a raw client that knows only the contract, and a scripted stack."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import torch

from splitwire import wire
from splitwire.frames import FrameAssembler, encode_frame
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles, channel_credentials
from splitwire.v1 import channels_pb2, stack_pb2
from splitwire.wire import ERROR_KEY, REMEDY_KEY
from ucn.executor import DeviceExecutor
from ucn.node import Node, load_node
from ucn.server import UcnServer
from ucn.settings import UcnSettings
from ucn.stacks.base import ForwardCall, StackState

WAIT_SECONDS = 20
WIDTH = 8


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """Certificates of one authority: tln, tap and ucn."""
    return init_pki(tmp_path_factory.mktemp("pki") / "pki", loopback=True)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """What the servers log while a test runs."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@dataclass
class ScriptedStack:
    """Doubles rows and sends gradients back unchanged. A test replaces `on_forward` to make something happen."""

    on_forward: Callable[[torch.Tensor, ForwardCall], torch.Tensor] = lambda rows, _call: rows * 2
    calls: list[str] = field(default_factory=list)
    cache_bytes: int = 0
    num_trainable_parameters: int = 7
    is_closed: threading.Event = field(default_factory=threading.Event)

    def forward(self, rows: torch.Tensor, call: ForwardCall) -> torch.Tensor:
        self.calls.append(f"forward {call.step}")
        if call.mode == "cached":
            self.cache_bytes = self.cache_bytes_for(call, rows.shape)
        return self.on_forward(rows, call)

    def backward(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        self.calls.append(f"backward {step}")
        return gradient

    def discard(self, step: int) -> None:
        self.calls.append(f"discard {step}")

    def zero_grad(self) -> None:
        self.calls.append("zero_grad")

    def squared_gradient_norm(self) -> float:
        return 4.0

    def optimizer_step(self, *values: float) -> float:
        self.calls.append(f"optimizer_step {list(values)}")
        return 4.0

    def cache_bytes_for(self, _call: ForwardCall, shape: Sequence[int]) -> int:
        return self.cache_bytes + 100 * shape[0] * shape[1]

    def cache_reorder(self, cache_id: int, indices: Sequence[int]) -> None:
        self.calls.append(f"cache_reorder {cache_id} {list(indices)}")

    def cache_crop(self, cache_id: int, num_positions: int) -> None:
        self.calls.append(f"cache_crop {cache_id} {num_positions}")

    def cache_release(self, cache_id: int) -> None:
        self.calls.append(f"cache_release {cache_id}")

    def state(self) -> StackState:
        return StackState({"parameter.weight": torch.ones(3)}, {"kind": "scripted"})

    def load_state(self, tensors: Any, facts: Any) -> None:
        self.calls.append(f"load_state {sorted(tensors)} {dict(facts)}")

    def close(self) -> None:
        self.is_closed.set()


IDENTITY = stack_pb2.ModelIdentity(
    family="llama", first_layer=2, last_layer=4, hidden_width=WIDTH, fingerprint="ab" * 32
)


@dataclass
class ScriptedNode:
    """A node whose sessions run scripted stacks; `stacks` holds them in order of opening."""

    prepare: Callable[[], ScriptedStack] = ScriptedStack
    stacks: list[ScriptedStack] = field(default_factory=list)

    def build(self) -> Node:
        executor = DeviceExecutor("cpu", 1)
        return Node(IDENTITY, self._open, executor, executor)

    def _open(self, _request: stack_pb2.OpenSessionRequest) -> ScriptedStack:
        self.stacks.append(self.prepare())
        return self.stacks[-1]


def transformer_request(**changes: Any) -> stack_pb2.OpenSessionRequest:
    """A training session over the scripted node's layers that the handshake accepts, with changes."""
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "stack_kind": stack_pb2.STACK_KIND_TRANSFORMER,
        "mode": stack_pb2.SESSION_MODE_TRAINING,
        "model": IDENTITY,
        "request_dtype": stack_pb2.WIRE_DTYPE_FP32,
        "response_dtype": stack_pb2.WIRE_DTYPE_FP32,
        "compute_dtype": stack_pb2.WIRE_DTYPE_FP32,
        "trainable_scope": stack_pb2.TRAINABLE_SCOPE_NONE,
        "max_cache_positions": 64,
        "max_cache_sequences": 4,
    }
    return stack_pb2.OpenSessionRequest(**{**fields, **changes})


def gram_request(**changes: Any) -> stack_pb2.OpenSessionRequest:
    """A session over the gram stack that the handshake accepts, with changes."""
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "stack_kind": stack_pb2.STACK_KIND_GRAM,
        "mode": stack_pb2.SESSION_MODE_TRAINING,
        "request_dtype": stack_pb2.WIRE_DTYPE_FP32,
        "response_dtype": stack_pb2.WIRE_DTYPE_FP32,
        "compute_dtype": stack_pb2.WIRE_DTYPE_FP32,
        "gram": stack_pb2.GramSettings(width=WIDTH, num_experts=2, num_layers=1),
        "optimizer": stack_pb2.OptimizerSettings(beta1=0.9, beta2=0.99, epsilon=1e-8),
    }
    return stack_pb2.OpenSessionRequest(**{**fields, **changes})


class Refusal(Exception):  # noqa: N818 - what a peer sees, not an error of ours
    """A call that the server ended with a status."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        trailing = dict(error.trailing_metadata() or ())
        self.code = error.code().name
        self.details = error.details() or ""
        self.error = trailing.get(ERROR_KEY, "")
        self.remedy = trailing.get(REMEDY_KEY, "")


class RawStream:
    """One Exchange stream: sends what it is told, byte for byte."""

    def __init__(self, channel: grpc.Channel, timeout: float) -> None:
        self._out: queue.Queue[bytes | None] = queue.Queue()
        self._call = channel.stream_stream(wire.EXCHANGE)(iter(self._out.get, None), timeout=timeout)

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._out.put(message)

    def receive_raw(self) -> bytes:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def receive(self) -> stack_pb2.ExchangeResponse:
        return stack_pb2.ExchangeResponse.FromString(self.receive_raw())

    def receive_tensor(self) -> torch.Tensor:
        assembler = FrameAssembler()
        while True:
            done = assembler.feed(self.receive().frame)
            if done is not None:
                return done.tensor

    def attach(self, session_id: str) -> int:
        self.send(stack_pb2.ExchangeRequest(attach=stack_pb2.Attach(session_id=session_id)).SerializeToString())
        return self.receive().attached.last_step

    def forward(self, step: int, rows: torch.Tensor, **header: Any) -> torch.Tensor:
        self.send(*frame_messages(channels_pb2.HOP_FORWARD, step, rows, **header))
        return self.receive_tensor()

    def backward(self, step: int, gradient: torch.Tensor) -> torch.Tensor:
        self.send(*frame_messages(channels_pb2.HOP_BACKWARD, step, gradient, compute_mode=0))
        return self.receive_tensor()

    def control(self, step: int, **action: Any) -> stack_pb2.ControlResult:
        self.send(control_message(step, **action))
        return self.receive().control_result

    def finish(self) -> None:
        """Half-closes and waits for the server to complete the stream."""
        self.send(None)  # type: ignore[arg-type]
        for _ in self._call:
            pass

    def cancel(self) -> None:
        self._out.put(None)
        self._call.cancel()


def frame_messages(hop: int, step: int, tensor: torch.Tensor, **header: Any) -> list[bytes]:
    """The messages of a frame; EVALUATE unless the header says otherwise."""
    chunk_bytes = header.pop("chunk_bytes", wire.CHUNK_BYTES)
    fields = {"dtype": stack_pb2.WIRE_DTYPE_FP32, "compute_mode": stack_pb2.COMPUTE_MODE_EVALUATE, **header}
    return list(encode_frame(stack_pb2.FrameHeader(hop=hop, step=step, **fields), tensor, chunk_bytes=chunk_bytes))


def control_message(step: int, **action: Any) -> bytes:
    """A serialized control message such as control_message(3, zero_grad=ZeroGrad())."""
    return stack_pb2.ExchangeRequest(control=stack_pb2.Control(step=step, **action)).SerializeToString()


class RawClient:
    """A peer that speaks the contract and nothing else."""

    def __init__(
        self, address: str, files: TlsFiles | None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        if files is not None:
            credentials = channel_credentials(files)
        self.channel = (
            grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
        )
        self._streams: list[RawStream] = []

    def call(self, method: str, raw: bytes, timeout: float = WAIT_SECONDS) -> bytes:
        try:
            return self.channel.unary_unary(method)(raw, timeout=timeout)
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def open(self, request: stack_pb2.OpenSessionRequest) -> stack_pb2.OpenSessionResponse:
        return stack_pb2.OpenSessionResponse.FromString(self.call(wire.OPEN_SESSION, request.SerializeToString()))

    def close_session(self, session_id: str) -> None:
        self.call(wire.CLOSE_SESSION, stack_pb2.CloseSessionRequest(session_id=session_id).SerializeToString())

    def stream(self, session_id: str = "") -> RawStream:
        stream = RawStream(self.channel, WAIT_SECONDS)
        self._streams.append(stream)
        if session_id:
            stream.attach(session_id)
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self.channel.close()


@dataclass
class Running:
    """A server that serves."""

    server: UcnServer
    loop: asyncio.AbstractEventLoop
    is_stopped: bool = False

    @property
    def address(self) -> str:
        return self.server.address

    def run(self, coroutine: Any, timeout: float = WAIT_SECONDS) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self.run(self.server.stop(0.5))


StartServer = Callable[..., Running]


@pytest.fixture
def start_server(loop: asyncio.AbstractEventLoop, pki: dict[str, TlsFiles]) -> Iterator[StartServer]:
    """start_server(node=..., **settings) -> a running server with mutual TLS; without a node, the gram stack alone."""
    started: list[Running] = []

    def start(node: Node | None = None, **settings: Any) -> Running:
        defaults: dict[str, Any] = {"listen": "127.0.0.1:0", "tls": pki["ucn"], "threads": 1}
        if node is None:
            defaults["stacks"] = ("gram",)
        effective = UcnSettings(**{**defaults, **settings})
        running = Running(UcnServer(effective, node or load_node(effective)), loop)
        running.run(running.server.start())
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop()


Connect = Callable[..., RawClient]


@pytest.fixture
def connect(pki: dict[str, TlsFiles]) -> Iterator[Connect]:
    """connect(running, name="tln") -> a client with that node's certificate."""
    clients: list[RawClient] = []

    def make(running: Running, name: str = "tln", **options: Any) -> RawClient:
        client = RawClient(running.address, options.get("files", pki.get(name)), options.get("credentials"))
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@dataclass
class Kit:
    """What the tests of this folder share beside servers and clients."""

    request: Callable[..., stack_pb2.OpenSessionRequest] = transformer_request
    gram_request: Callable[..., stack_pb2.OpenSessionRequest] = gram_request
    frame: Callable[..., list[bytes]] = frame_messages
    control: Callable[..., bytes] = control_message
    client: type[RawClient] = RawClient
    refusal: type[Refusal] = Refusal
    stack: type[ScriptedStack] = ScriptedStack
    node: type[ScriptedNode] = ScriptedNode
    identity: stack_pb2.ModelIdentity = field(default_factory=lambda: IDENTITY)
    width: int = WIDTH
    wait_seconds: float = WAIT_SECONDS

    def rows(self, sequences: int = 2, positions: int = 3) -> torch.Tensor:
        """Rows that are the same in every run."""
        count = sequences * positions * self.width
        return torch.arange(count, dtype=torch.float32).reshape(sequences, positions, self.width) / count

    def replace(self, message: Any, **changes: Any) -> Any:
        """A changed copy of a settings dataclass."""
        return dataclasses.replace(message, **changes)


@pytest.fixture(scope="session")
def kit() -> Kit:
    """Requests, frames and doubles."""
    return Kit()


@pytest.fixture
def scripted(kit: Kit, start_server: StartServer, connect: Connect) -> tuple[ScriptedNode, Running, RawClient]:
    """A scripted node, its server with default limits, and a trusted node's client."""
    node = kit.node()
    running = start_server(node.build())
    return node, running, connect(running)


@pytest.fixture
def tiny_settings(tiny_model: Callable[[str], Path]) -> dict[str, Any]:
    """Settings of a server over layers 2 and 3 of the tiny llama."""
    from splitwire.backbone import ModelSettings  # noqa: PLC0415 - brings transformers in

    return {
        "stacks": ("transformer", "gram"),
        "model": ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4),
    }
