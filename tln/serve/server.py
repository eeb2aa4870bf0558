"""From settings to a listening endpoint, and to its orderly end.

On SIGTERM or SIGINT: new requests are answered 503, those that were taken on may end within drain_seconds, the rest is
ended with an error, sessions are closed, the bundle is completed, exit 0. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from splitwire.backbone import identity, load_config, load_generation_config, load_head_and_tail, load_tokenizer
from splitwire.errors import SettingsError
from splitwire.logging import get_logger
from splitwire.tls import split_address
from tln.connect import effective_facts, frame_pipeline, recorded, truth_facts
from tln.keys import FrameKeys, RunKey
from tln.metrics import served
from tln.recording import open_recording
from tln.serve.access import load_keys
from tln.serve.app import Serving, build_app, too_many
from tln.serve.engine import Engine
from tln.serve.layers import LocalLayers
from tln.serve.links import Link, LinkPool
from tln.serve.metrics import ServeMetrics
from tln.serve.prompts import Prompts
from tln.serve.protocol import http_protocol
from tln.serve.readiness import Readiness
from tln.serve.sessions import SessionMaker
from tln.session import session_request
from tln.settings import TlnSettings

_log = get_logger(__name__)
_FORCED_EXIT = 128 + signal.SIGTERM
_CLOSE_SECONDS = 5


@contextlib.contextmanager
def serving(
    settings: TlnSettings, announce: Callable[[Mapping[str, Any]], None] = lambda _defence: None
) -> Iterator[Serving]:
    """An engine with a first session open, and all that answers need. Leaving the block ends sessions and recording."""
    serve, stack = settings.serve, settings.stack
    keys = load_keys(Path(serve.api_key_file)) if serve.api_key_file else None
    config, tokenizer = load_config(settings.model), load_tokenizer(settings.model)
    hidden_width, run_key = int(config.hidden_size), RunKey.generate()
    pipeline = frame_pipeline(settings, FrameKeys(run_key), run_key, hidden_width)
    effective = effective_facts(settings, pipeline, [None])
    announce(effective["defence"])
    head, tail = load_head_and_tail(settings.model)
    model = identity(settings.model)
    request = session_request(
        replace(stack, max_cache_sequences=1), model, mode="inference", compute_dtype=settings.model.dtype
    )
    recording = open_recording(
        settings.record, effective=effective, run_key=run_key, facts=truth_facts(settings.model, config)
    )
    with (
        recorded(recording, (), 0),
        served(settings.metrics, effective["defence"], settings.connection.tls) as run,
        ThreadPoolExecutor(1, "tokenizer") as tokenizing,
    ):
        maker = SessionMaker(settings, request, run_key, hidden_width, recording, run)
        links = LinkPool([Link(number, maker.open) for number in range(serve.max_running)], serve.retry_after_seconds)
        metrics = ServeMetrics(run)
        with contextlib.ExitStack() as stack_of_ends:
            ends = stack_of_ends.enter_context(contextlib.ExitStack())
            stack_of_ends.callback(links.close, _CLOSE_SECONDS)
            fitting = links.open_first().crossing.max_positions(1, hidden_width)
            engine = Engine(
                LocalLayers(head, tail),
                links,
                tokenizer,
                _ends_of(settings, tokenizer),
                serve,
                min(serve.prefill_positions, stack.prefill_positions or fitting, fitting),
                metrics,
                None if recording is None else recording.texts,
            )
            engine.start()
            stack_of_ends.callback(engine.stop)
            readiness = Readiness(engine, links, serve.check_seconds, serve.check_timeout_seconds)
            metrics.watch_readiness(lambda: not readiness.standing().reason)
            readiness.start()
            ends.callback(readiness.end)
            num_positions = min(stack.max_cache_positions, int(config.max_position_embeddings))
            yield Serving(
                engine,
                readiness,
                Prompts(tokenizer, serve, num_positions, int(config.vocab_size)),
                serve,
                metrics,
                serve.model_name or Path(settings.model.source).name,
                f"fp_{model.fingerprint[:16]}",
                tokenizing,
                int(time.time()),
                keys,
            )


def _ends_of(settings: TlnSettings, tokenizer: Any) -> frozenset[int]:
    named = load_generation_config(settings.model).eos_token_id
    several = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, since draining comes first; `on_ready` is called once it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_server(
    parts: Serving, listening: socket.socket, stopping: asyncio.Event, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Answers on the socket until `stopping` is set, then drains."""
    serve = parts.settings
    config = uvicorn.Config(
        build_app(parts),
        http=http_protocol(serve.body_seconds, serve.max_connections, too_many(parts)),
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        ssl_certfile=serve.certificate or None,
        ssl_keyfile=serve.certificate_key or None,
    )
    server = _Server(config, on_ready)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():  # it could not listen
        asked.cancel()
        return running.result()
    _log.info("draining", drain_seconds=serve.drain_seconds)
    is_empty = await asyncio.to_thread(parts.engine.drain, serve.drain_seconds)
    if not is_empty:
        await asyncio.to_thread(parts.engine.fail_all)
    server.should_exit = True
    return await running


def listen(address: str) -> socket.socket:
    """A socket that is bound to host:port and refuses callers until it is served; SettingsError when it cannot be."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise SettingsError(
            f"serve.listen {address} cannot be bound: {error.strerror}",
            remedy="choose a free port on an address of this machine",
        ) from None
    return listening


async def serve_until_signal(parts: Serving, listening: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    host, port = listening.getsockname()[:2]
    scheme = "https" if parts.settings.certificate else "http"
    shown = f"[{host}]" if ":" in host else host
    ready = lambda: _log.info("serving", url=f"{scheme}://{shown}:{port}/v1", model=parts.model)  # noqa: E731
    await run_server(parts, listening, stopping, ready)
    _log.info("stopped")


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(_FORCED_EXIT)  # an exchange that waits would keep an ordinary exit waiting
    stopping.set()
