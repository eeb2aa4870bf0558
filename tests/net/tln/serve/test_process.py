"""The real programs: `ucn serve` in this process, `tln serve` in its own, and the openai client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from splitwire.tls import TlsFiles

KEY = "a-key-of-enough-characters"


class Program:
    """A running `tln serve`, and the lines that it has said."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tln.cli import main; main()", "serve", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self.url = ""
        self._is_ready = threading.Event()
        self.is_draining = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if '"event": "serving"' in line:
                self.url = line.partition('"url": "')[2].partition('"')[0]
                self._is_ready.set()
            if '"event": "draining"' in line:
                self.is_draining.set()
        self._is_ready.set()

    def wait_ready(self) -> None:
        assert self._is_ready.wait(60)
        assert self.url, self.lines

    def end(self) -> int:
        code = self.process.wait(30)
        self._thread.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def node(start_node: Callable[..., Any]) -> Any:
    """A node over the tiny llama."""
    return start_node()


@pytest.fixture
def program(node: Any, pki: dict[str, TlsFiles], tmp_path: Path) -> Iterator[Program]:
    """`tln serve` with a key, against the node."""
    tls = pki["tln"]
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(KEY)
    config = tmp_path / "serve.toml"
    config.write_text(
        f'model = {{ source = "{node.settings.model.source}", first_layer = 2, last_layer = 4 }}\n'
        f"stack = {{ max_cache_positions = 128 }}\n"
        f'serve = {{ listen = "127.0.0.1:0", model_name = "tiny", api_key_file = "{file}" }}\n'
        f'[connection]\naddress = "{node.settings.listen}"\n'
        f'tls = {{ ca = "{tls.ca}", certificate = "{tls.certificate}", key = "{tls.key}" }}\n'
    )
    running = Program(["--config", str(config)], dict(os.environ) | {"OMP_NUM_THREADS": "1"})
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.end()


def test_a_process_serves_and_drains(program: Program, unsplit: Any) -> None:
    """SIGTERM in the middle of a stream: the stream ends as it should, and the exit code is 0."""
    program.wait_ready()
    with openai.OpenAI(base_url=program.url, api_key=KEY, max_retries=0, timeout=20) as client:
        stream = client.completions.create(model="tiny", prompt="hello", max_tokens=100, temperature=0, stream=True)
        text = next(iter(stream)).choices[0].text
        program.process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == unsplit.text("hello", 100)
    assert program.process.wait(30) == 0
    said = "".join(program.lines)
    assert "NO DEFENCE" in said
    assert "draining" in said
    assert "hello" not in said
    assert KEY not in said


def test_a_second_signal_ends_a_process_that_waits(program: Program, node: Any) -> None:
    """For an answer that does not come: it would wait for `drain_seconds` and more."""
    is_over = threading.Event()
    program.wait_ready()
    executor = node.server._node.transformer_executor
    with openai.OpenAI(base_url=program.url, api_key=KEY, max_retries=0, timeout=20) as client:
        stream = client.completions.create(model="tiny", prompt="hello", max_tokens=100, temperature=0, stream=True)
        next(iter(stream))
        stuck = asyncio.run_coroutine_threadsafe(executor.run(is_over.wait), node.loop)
        try:
            program.process.send_signal(signal.SIGTERM)
            assert program.is_draining.wait(20)
            program.process.send_signal(signal.SIGTERM)
            assert program.process.wait(20) == 143
        finally:
            is_over.set()
        with pytest.raises((openai.APIError, httpx2.HTTPError)):
            list(stream)
    stuck.result(20)
