"""Two real processes and the real small model: `ucn serve` and `tln generate` give the unsplit model's text."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from splitwire.backbone import ModelSettings, load_tokenizer, load_whole
from splitwire.pki import init_pki
from splitwire.tls import TlsFiles

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
PROMPT = "The three primary colours are"
NUM_TOKENS = 24
WAIT_SECONDS = 120


def pairs(**settings: object) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def tls_pairs(prefix: str, files: TlsFiles) -> list[str]:
    names = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    return [part for key, value in names.items() for part in ("--set", f"{prefix}tls.{key}={value}")]


@pytest.fixture
def node(smollm2: Path, tmp_path: Path) -> Iterator[tuple[str, TlsFiles, list[str], Path]]:
    """Address, the trusted node's certificate, the model's settings and the log of a serving process."""
    files = init_pki(tmp_path / "pki", loopback=True)
    model = pairs(model__source=smollm2, model__first_layer=5, model__last_layer=25)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = tmp_path / "ucn.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [BIN / "ucn", "serve", *pairs(listen=address, drain_seconds=1), *model, *tls_pairs("", files["ucn"])],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        try:
            yield address, files["tln"], model, log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 0, log.read_text()


def test_the_text_of_two_processes_is_that_of_one(node: tuple[str, TlsFiles, list[str], Path], smollm2: Path) -> None:
    """Greedy, streamed; the prompt is in no log, and the untrusted node stops cleanly."""
    address, files, model, log = node
    connection = pairs(connection__address=address, connection__connect_timeout_seconds=WAIT_SECONDS)
    result = subprocess.run(
        [
            *(BIN / "tln", "generate", *model, *connection, *tls_pairs("connection.", files)),
            *("--prompt", PROMPT, "--max-new-tokens", str(NUM_TOKENS)),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    settings = ModelSettings(source=str(smollm2), first_layer=5, last_layer=25)
    tokenizer, whole = load_tokenizer(settings), load_whole(settings)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        output = whole.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=2)
    expected = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert result.stdout.strip() == expected.strip()
    assert "tokens/s" in result.stderr
    for text in (result.stderr, log.read_text()):
        assert PROMPT not in text


def test_an_unreachable_node_is_one_line_and_an_exit_code(smollm2: Path, tmp_path: Path) -> None:
    """No traceback, no secret; code 6 is the peer's branch of the error tree."""
    files = init_pki(tmp_path / "pki", loopback=True)["tln"]
    model = pairs(model__source=smollm2, model__first_layer=5, model__last_layer=25)
    connection = pairs(connection__address="127.0.0.1:9", connection__connect_timeout_seconds=1)
    result = subprocess.run(
        [BIN / "tln", "generate", *model, *connection, *tls_pairs("connection.", files), "--prompt", PROMPT],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert result.returncode == 6
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("tln: error: OpenSession: no untrusted node answers at 127.0.0.1:9")
    assert PROMPT not in result.stderr
