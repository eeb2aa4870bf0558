"""The trusted node's code against a real untrusted node on loopback, with mutual TLS and tiny weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
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
    load_whole,
)
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles
from tests.net.tln.cable import Cable
from tln.connection import ConnectionSettings
from tln.crossing import Crossing
from tln.model import SplitModelForCausalLM
from tln.session import open_crossing, session_request
from tln.stack_settings import StackSettings
from tln.transport import GrpcTransport
from ucn.node import load_node
from ucn.server import UcnServer
from ucn.settings import UcnSettings

WAIT_SECONDS = 20


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """Certificates of one authority: tln, tap and ucn."""
    return init_pki(tmp_path_factory.mktemp("pki") / "pki", loopback=True)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of these tests' own for converted checkpoints and fingerprints."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def cache_variable(cache_folder: Path) -> Iterator[None]:
    """Names the cache while a module of this folder runs; the others, in random order between them, keep theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPLITWIRE_CACHE", str(cache_folder))
        yield


@dataclass
class Node:
    """An untrusted node that serves; `restart` ends it and starts a new one on the same port."""

    settings: UcnSettings
    loop: asyncio.AbstractEventLoop
    server: UcnServer = field(init=False)
    is_running: bool = False

    def start(self) -> Node:
        self.server = UcnServer(self.settings, load_node(self.settings))
        self._run(self.server.start())
        self.settings = replace(self.settings, listen=self.server.address)
        self.is_running = True
        return self

    def stop(self) -> None:
        if self.is_running:
            self._run(self.server.stop(0.2))
            self.is_running = False

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_SECONDS)


@dataclass
class Link:
    """A transport and a crossing over an open session of a node, with the settings they were made from."""

    transport: GrpcTransport
    crossing: Crossing
    model_settings: ModelSettings

    def split_model(self) -> SplitModelForCausalLM:
        head, tail = load_head_and_tail(self.model_settings)
        model = SplitModelForCausalLM(
            load_config(self.model_settings),
            head,
            tail,
            self.crossing,
            generation_config=load_generation_config(self.model_settings),
        )
        model.train(mode=False)
        return model

    def whole_model(self) -> Any:
        return load_whole(self.model_settings)


@pytest.fixture
def start_node(
    loop: asyncio.AbstractEventLoop, pki: dict[str, TlsFiles], tiny_model: Callable[[str], Path]
) -> Iterator[Callable[..., Node]]:
    """start_node(family, **settings) -> a node over layers 2 and 3 of the tiny model."""
    started: list[Node] = []

    def start(family: str = "llama", **settings: Any) -> Node:
        model = ModelSettings(source=str(tiny_model(family)), first_layer=2, last_layer=4)
        defaults: dict[str, Any] = {"listen": "127.0.0.1:0", "tls": pki["ucn"], "threads": 1, "model": model}
        started.append(Node(UcnSettings(**defaults | settings), loop).start())
        return started[-1]

    yield start
    for node in started:
        node.stop()


@pytest.fixture
def connect(pki: dict[str, TlsFiles]) -> Iterator[Callable[..., Link]]:
    """connect(node, mode="inference", stack=..., address=..., **connection) -> an open session."""
    transports: list[GrpcTransport] = []

    def make(
        node: Node,
        mode: str = "inference",
        stack: StackSettings = StackSettings(max_cache_positions=256),  # noqa: B008 - frozen
        observers: tuple[Any, ...] = (),
        **connection: Any,
    ) -> Link:
        options: dict[str, Any] = {"address": node.settings.listen, "tls": pki["tln"]}
        transport = GrpcTransport(ConnectionSettings(**options | connection), list(observers))
        transports.append(transport)
        model = node.settings.model
        assert model is not None
        request = session_request(stack, identity(model), mode=mode)  # type: ignore[arg-type]
        crossing = open_crossing(
            transport, request, policy=lambda gradient, _: gradient, recovery=transport.settings.recovery
        )
        return Link(transport, crossing, model)

    yield make
    for transport in transports:
        transport.close()


@pytest.fixture
def cable(loop: asyncio.AbstractEventLoop) -> Iterator[Callable[[Any], tuple[Cable, str]]]:
    """cable(node) -> a cable to the node and the address of its near end."""
    cables: list[Cable] = []

    def lay(node: Any) -> tuple[Cable, str]:
        made = Cable(loop, int(node.settings.listen.rpartition(":")[2]))
        cables.append(made)
        return made, made.start()

    yield lay
    for made in cables:
        made.stop()


@pytest.fixture
def batch() -> torch.Tensor:
    """Token ids [3, 12] without special tokens."""
    return torch.randint(0, 256, (3, 12), generator=torch.Generator().manual_seed(7))
