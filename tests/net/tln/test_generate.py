"""`tln generate` against a real untrusted node: the unsplit model's text, and a bundle that an auditor can read."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from typer.testing import CliRunner

from splitwire.backbone import load_tokenizer, load_whole
from splitwire.bundles import TRUTH_FILE, open_bundle, read_truth, verify_bundle
from splitwire.errors import ModelError, SettingsError, SplitwireError
from splitwire.sealing import load_sealing_private_key, open_sealed, write_audit_keys
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln.cli import app
from tln.recording import RUN_KEY_FILE, RUN_KEY_PURPOSE

MARKER = "xyzzy-marker-7391"


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """The command configures the process's logging, which here is the node's too; it is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


@pytest.fixture
def generate(pki: dict[str, TlsFiles], start_node: Callable[..., Any]) -> Callable[..., Any]:
    """generate(*arguments) -> the result of `tln generate` against a node over the tiny llama."""
    node = start_node()
    model, tls = node.settings.model, pki["tln"]
    common = {
        "model.source": model.source,
        "model.first_layer": model.first_layer,
        "model.last_layer": model.last_layer,
        "connection.address": node.settings.listen,
        "connection.tls.ca": tls.ca,
        "connection.tls.certificate": tls.certificate,
        "connection.tls.key": tls.key,
    }

    def run(*arguments: str, stdin: bytes = b"") -> Any:
        pairs = [part for key, value in common.items() for part in ("--set", f"{key}={value}")]
        with logging_as_it_was():
            result = CliRunner().invoke(app, ["generate", *pairs, *arguments], input=stdin)
        if isinstance(result.exception, SplitwireError):
            raise result.exception
        return result

    run.model = model  # type: ignore[attr-defined]
    return run


def test_the_text_is_that_of_the_unsplit_model(generate: Any) -> None:
    """Streamed to stdout; what was defended, and how fast, goes to stderr."""
    result = generate("--prompt", "Hello there", "--max-new-tokens", "12")
    assert result.exit_code == 0, result.output
    tokenizer, whole = load_tokenizer(generate.model), load_whole(generate.model)
    inputs = tokenizer("Hello there", return_tensors="pt")
    expected = whole.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert result.stdout.strip() == tokenizer.decode(expected, skip_special_tokens=True).strip()
    assert "NO DEFENCE" in result.stderr
    assert "12 tokens in" in result.stderr


@pytest.mark.parametrize("options", [("--temperature", "0.8", "--seed", "4"), ("--num-beams", "2"), ("--chat",)])
def test_other_ways_to_decode_run(generate: Any, options: tuple[str, ...]) -> None:
    """Sampling is repeatable with its seed."""
    results = [generate("--prompt", "Hello there", "--max-new-tokens", "8", *options) for _ in range(2)]
    assert results[0].exit_code == 0, results[0].output
    assert results[0].stdout == results[1].stdout


def test_a_prompt_comes_from_a_file(generate: Any, tmp_path: Path) -> None:
    """So that it is not in the list of processes; exactly one source."""
    file = tmp_path / "prompt.txt"
    file.write_text("Hello there")
    assert generate("--prompt-file", str(file), "--max-new-tokens", "4").exit_code == 0
    for arguments, match in (
        ((), "twice or not at all"),
        (("--prompt", "x", "--prompt-file", str(file)), "twice or not at all"),
        (("--prompt-file", str(tmp_path / "none")), "cannot be read"),
    ):
        with pytest.raises(SettingsError, match=match):
            generate(*arguments)


def test_wrong_settings_end_before_anything_is_loaded(generate: Any) -> None:
    """An impossible cut, a mechanism that has no place in generation."""
    with pytest.raises(ModelError, match="first_layer"):
        generate("--prompt", "x", "--max-new-tokens", "8", "--set", "model.first_layer=0")
    with pytest.raises(SettingsError, match="decoys"):
        generate("--prompt", "x", "--set", 'frame.mechanisms=["clip_noise","decoys"]')


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--temperature", "inf"), "--temperature is inf"),
        (("--temperature", "1e-320"), "--temperature is"),
        (("--num-beams", "17"), "--num-beams is 17, stack.max_cache_sequences 16"),
        (("--max-new-tokens", "127"), "exceed the model's length, 128"),
        (("--set", "stack.max_cache_positions=9"), "8 new ones exceed stack.max_cache_positions, 9"),
        (("--max-new-tokens", "9" * 12), "exceed stack.max_cache_positions"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_anything_crosses(
    generate: Any, options: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """Not in the middle of the text."""
    folder = tmp_path / "bundle"
    with pytest.raises(SettingsError, match=named):
        generate("--prompt", MARKER[:5], "--max-new-tokens", "8", "--record", str(folder), *options)
    assert not folder.exists()


def test_a_prompt_that_is_no_text_is_refused(generate: Any, tmp_path: Path) -> None:
    """From a file, from stdin and from the command line, and without showing it."""
    (tmp_path / "prompt").write_bytes(MARKER.encode() + b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8") as caught:
        generate("--prompt-file", str(tmp_path / "prompt"))
    assert MARKER not in str(caught.value)
    with pytest.raises(SettingsError, match="is not UTF-8") as caught:
        generate("--prompt-file", "-", stdin=MARKER.encode() + b"\xff\xfe")
    assert MARKER not in str(caught.value)
    with pytest.raises(SettingsError, match="--prompt is not UTF-8") as caught:
        generate("--prompt", MARKER + "\udcff")
    assert MARKER not in str(caught.value)


def test_print_settings_shows_and_sends_nothing(generate: Any) -> None:
    """Also the hash."""
    result = generate("--print-settings")
    assert "connection.address" in result.stdout
    assert "settings hash" in result.stdout


def test_a_recorded_generation_can_be_verified_and_joined_with_its_truth(generate: Any, tmp_path: Path) -> None:
    """Bundle, truth and run key; the prompt is in none of the bytes that crossed, and the defence is named."""
    keys = tmp_path / "keys"
    trust = write_audit_keys(keys)
    folder = tmp_path / "bundle"
    result = generate(
        *("--prompt", MARKER, "--max-new-tokens", "5", "--record", str(folder)),
        *("--set", f"record.audit_key={keys / 'audit.pub'}"),
        *("--set", f"record.signing_key={keys / 'tln-recorder.key'}"),
        *("--set", 'frame.mechanisms=["clip_noise"]', "--set", "frame.clip_noise.clip_norm=50.0"),
    )
    assert result.exit_code == 0, result.output
    assert "defence: clip, noise" in result.stderr
    report = verify_bundle(folder, trust)
    assert report.is_complete
    assert report.is_signed
    assert not report.problems
    private = load_sealing_private_key(keys / "audit.key")
    truth = read_truth(folder / TRUTH_FILE, private)
    bundle = open_bundle(folder)
    frames = list(bundle.frames(channels_pb2.HOP_FORWARD))
    generated = re.search(r"(\d+) tokens? in", result.stderr)  # noise may draw the end of the text before the fifth
    assert generated is not None
    assert len(frames) == int(generated[1])
    for frame in frames:
        record = truth.records[frame.session_hash, frame.header.step]
        assert record.forward_digest == frame.message_digest
        assert record.phase == "generate"
        assert record.real.shape == tuple(frame.header.shape[:2])
    prompt = truth.records[frames[0].session_hash, frames[0].header.step].token[0]
    tokenizer = load_tokenizer(generate.model)
    assert np.array_equal(prompt, np.array(tokenizer(MARKER)["input_ids"]))
    assert bundle.settings["defence"]["frame"]["clip"]["clip_norm"] == 50.0
    assert len(open_sealed((folder / RUN_KEY_FILE).read_bytes(), private, RUN_KEY_PURPOSE)) == 32
    for file in folder.iterdir():
        assert MARKER.encode() not in file.read_bytes(), file.name
    assert MARKER not in result.stderr
    assert MARKER not in json.dumps(bundle.settings)


def join_texts(folder: Path, key: Path) -> list[Any]:
    """The texts of a bundle, after every real row was compared with the text that it belongs to."""
    truth = read_truth(folder / TRUTH_FILE, key)
    texts = {text.document: text for text in truth.texts}
    seen: dict[int, set[int]] = {document: set() for document in texts}
    for frame in open_bundle(folder).frames(channels_pb2.HOP_FORWARD):
        record = truth.records[frame.session_hash, frame.header.step]
        for document, order, token, label in zip(
            *(getattr(record, name)[record.real].tolist() for name in ("document", "order", "token", "label")),
            strict=True,
        ):
            tokens = texts[document].tokens
            assert tokens[order] == token
            assert label in {tokens[order + 1], -100}
            seen[document].add(order)
    for document, text in texts.items():
        assert seen[document] == set(range(len(text.tokens) - 1)), "every token but the last was a row"
    assert [document["id"] for document in truth.documents] == [f"text-{number + 1}" for number in range(len(texts))]
    return truth.texts


def test_the_truth_holds_prompt_and_answer_and_every_row_joins_with_them(generate: Any, tmp_path: Path) -> None:
    """Also when the prompt crossed in parts; the last token of the answer is in the text alone."""
    keys = tmp_path / "keys"
    write_audit_keys(keys)
    result = generate(
        *("--prompt", MARKER, "--max-new-tokens", "5", "--record", str(tmp_path / "bundle")),
        *("--set", f"record.audit_key={keys / 'audit.pub'}", "--set", "stack.prefill_positions=4"),
    )
    assert result.exit_code == 0, result.output
    (text,) = join_texts(tmp_path / "bundle", keys / "audit.key")
    tokenizer = load_tokenizer(generate.model)
    assert tokenizer.decode(text.tokens[: text.num_prompt]) == MARKER
    answer = text.tokens[text.num_prompt :]
    assert 1 <= len(answer) <= 5
    assert tokenizer.decode(answer, skip_special_tokens=True).strip() == result.stdout.strip()


def test_a_defence_took_effect_on_what_crossed(generate: Any, tmp_path: Path) -> None:
    """With clip and noise the same prompt crosses as other rows each time; without, as the same rows."""
    rows = []
    for name, mechanisms in (("a", '["clip_noise"]'), ("b", '["clip_noise"]'), ("c", "[]"), ("d", "[]")):
        generate(
            *("--prompt", "Hello", "--max-new-tokens", "1", "--record", str(tmp_path / name)),
            *("--set", f"frame.mechanisms={mechanisms}"),
        )
        rows.append(next(open_bundle(tmp_path / name).frames(channels_pb2.HOP_FORWARD)).tensor)
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[2], rows[3])


def test_a_failed_run_leaves_a_bundle_that_says_so(
    generate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readable, and incomplete."""
    for check in ("tln.cli.generate.check_length", "tln.model.SplitModelForCausalLM._check_limits"):
        monkeypatch.setattr(check, lambda *_: None)  # else it would not begin
    with pytest.raises(SplitwireError, match="positions"):
        generate(
            *("--prompt", "Hello", "--max-new-tokens", "9", "--record", str(tmp_path / "bundle")),
            *("--set", "stack.max_cache_positions=8"),
        )
    bundle = open_bundle(tmp_path / "bundle")
    assert not bundle.is_complete
    assert list(bundle.frames(channels_pb2.HOP_FORWARD))
