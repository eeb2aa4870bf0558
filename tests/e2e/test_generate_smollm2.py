"""Two real processes and the real small model: `ucn serve` and `tln generate` give the unsplit model's text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from splitwire.backbone import load_tokenizer, load_whole

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TLN = Path(sys.executable).parent / "tln"
PROMPT = "The three primary colours are"
NUM_TOKENS = 64


def run_tln(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TLN, "generate", *options, "--prompt", PROMPT, "--max-new-tokens", str(NUM_TOKENS)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_the_text_of_two_processes_is_that_of_one(node) -> None:
    """Greedy, 64 tokens, streamed; the prompt is in no log, and the untrusted node stops cleanly."""
    result = run_tln(*node.options())
    assert result.returncode == 0, result.stderr
    tokenizer, whole = load_tokenizer(node.model), load_whole(node.model)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        output = whole.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=2)
    expected = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert result.stdout.strip() == expected.strip()
    assert "tokens/s" in result.stderr
    for text in (result.stderr, node.log.read_text()):
        assert PROMPT not in text


def test_an_unreachable_node_is_one_line_and_an_exit_code(node) -> None:
    """No traceback, no secret; code 6 is the peer's branch of the error tree."""
    unreachable = ("--set", "connection.address=127.0.0.1:9", "--set", "connection.connect_timeout_seconds=1")
    result = run_tln(*node.options(), *unreachable)
    assert result.returncode == 6
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("tln: error: OpenSession: no untrusted node answers at 127.0.0.1:9")
    assert PROMPT not in result.stderr
