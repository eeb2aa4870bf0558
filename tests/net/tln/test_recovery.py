"""A generation must give the uninterrupted answer when the untrusted node loses the session under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from auditor.channels import FORWARD_ONLY
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import Plan, ResponseSettings
from auditor.progress import silent
from auditor.views.prompt_capture import Grants, prompt_view
from splitwire.bundles import RecordedFrame, open_bundle, read_truth, verify_bundle
from splitwire.errors import StateError, UnavailableError
from splitwire.sealing import write_audit_keys
from splitwire.v1 import channels_pb2
from tln.connection import RecoverySettings
from tln.keys import FrameKeys, RunKey
from tln.mechanisms.clip_noise import NoiseRows
from tln.pipeline import FramePipeline
from tln.recording import RecordSettings, open_recording
from tln.stack_settings import StackSettings

PAD = 258
OPTIONS: dict[str, Any] = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "pad_token_id": PAD}
STACK = StackSettings(max_cache_positions=256)


def restarting(node: Any, link: Any, *frames: int) -> list[str]:
    """Has the node end and start again before FORWARD frames of these numbers; gives the sessions that were lost."""
    lost: list[str] = []
    seen = 0

    def guard(route: Any, _messages: Any) -> None:
        nonlocal seen
        seen += route.hop == channels_pb2.HOP_FORWARD
        if route.hop == channels_pb2.HOP_FORWARD and seen in frames:
            lost.append(link.crossing.session_hash)
            node.stop()
            node.start()

    link.crossing.guards.append(guard)
    return lost


def padded(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    return batch.masked_fill(mask == 0, PAD), mask


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"num_beams": 3, "num_return_sequences": 2}),
        ("llama", {"do_sample": True, "top_k": 20}),
        ("gemma3_text", {}),
    ],
)
def test_a_padded_batch_survives_the_node_that_is_started_again(
    start_node: Callable[..., Any],
    connect: Callable[..., Any],
    batch: torch.Tensor,
    family: str,
    options: dict[str, Any],
) -> None:
    """Twice, the second time before the first token that was sent after the first."""
    node = start_node(family)
    tokens, mask = padded(batch)
    chosen = OPTIONS | options
    torch.manual_seed(5)
    expected = connect(node).whole_model().generate(tokens, attention_mask=mask, **chosen)
    link = connect(node, stack=STACK)
    model = link.split_model()
    model.prefill_positions = 8
    lost = restarting(node, link, 5, 8)
    torch.manual_seed(5)
    assert torch.equal(model.generate(tokens, attention_mask=mask, **chosen), expected)
    assert len(set(lost)) == 2
    assert link.crossing.session_hash not in lost
    assert link.crossing.recovery.history.num_bytes == 0, "what is released is forgotten"


def test_a_cache_that_was_cropped_is_filled_with_what_is_left(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor
) -> None:
    """Prompt lookup guesses, crops what was wrong, and loses the node in between."""
    node = start_node()
    prompt = torch.cat([batch[:1], batch[:1]], dim=1)  # so that there is something to look up
    chosen = OPTIONS | {"prompt_lookup_num_tokens": 3}
    link = connect(node)
    expected = link.whole_model().generate(prompt, **chosen)
    lost = restarting(node, link, 4)
    assert torch.equal(link.split_model().generate(prompt, **chosen), expected)
    assert lost


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_what_crosses_again_is_what_crossed_before(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor, tmp_path: Path, dtype: Any
) -> None:
    """Byte for byte, noise included; the bundle is whole, and the truth knows the rows of both sessions."""
    keys = tmp_path / "keys"
    trust = write_audit_keys(keys)
    node = start_node()
    link = connect(node, stack=replace(STACK, request_dtype=dtype))
    run_key = RunKey.generate()
    settings = RecordSettings(
        str(tmp_path / "bundle"),
        audit_key=str(keys / "audit.pub"),
        signing_key=str(keys / "tln-recorder.key"),
    )
    recording = open_recording(settings, effective={}, run_key=run_key)
    assert recording is not None
    recording.attach(link.transport)
    recording.follow(link.crossing)
    model = link.split_model()
    model.pipeline = FramePipeline([NoiseRows(0.01, FrameKeys(run_key, link.crossing.session_hash))])
    model.texts = recording.texts
    restarting(node, link, 6)
    model.generate(batch, **OPTIONS)
    link.transport.close()
    recording.close()

    assert not verify_bundle(tmp_path / "bundle", trust).problems
    truth = read_truth(tmp_path / "bundle" / "truth.sealed", keys / "audit.key")
    bundle = open_bundle(tmp_path / "bundle")
    frames: dict[str, list[RecordedFrame]] = {}
    for frame in bundle.frames(channels_pb2.HOP_FORWARD):
        frames.setdefault(frame.session_hash, []).append(frame)
        assert truth.records[frame.session_hash, frame.header.step].forward_digest == frame.message_digest
    first, second = frames.values()
    sent = torch.cat([frame.tensor for frame in first], dim=1)
    again = torch.cat([frame.tensor for frame in second], dim=1)
    assert len(first) == 6, "the sixth was sent, and not answered"
    assert torch.equal(again[:, : sent.shape[1]], sent)
    assert second[0].header.step > first[-1].header.step
    replayed = truth.records[second[0].session_hash, second[0].header.step]
    assert replayed.order[0].tolist() == list(range(sent.shape[1] - 1))
    assert set(replayed.document.flatten().tolist()) == {0, 1, 2}
    for text in truth.texts:
        assert replayed.token[text.document].tolist() == text.tokens[: sent.shape[1] - 1].tolist()


def test_a_text_that_crossed_twice_is_one_for_the_auditor(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor, tmp_path: Path
) -> None:
    """The node is killed twice; each text of the bundle is there once and whole, with its prompt and no complaint."""
    keys, bundle = tmp_path / "keys", tmp_path / "bundle"
    write_audit_keys(keys)
    node = start_node()
    link = connect(node, stack=STACK)
    run_key = RunKey.generate()
    recording = open_recording(
        RecordSettings(str(bundle), audit_key=str(keys / "audit.pub")), effective={}, run_key=run_key
    )
    assert recording is not None
    recording.attach(link.transport)
    recording.follow(link.crossing)
    model = link.split_model()
    model.texts = recording.texts
    lost = restarting(node, link, 4, 7)
    expected = model.generate(batch, **OPTIONS)
    link.transport.close()
    recording.close()

    assert len(set(lost)) == 2
    plan = Plan(compute_modes=(), response=ResponseSettings(source=str(link.model_settings.source)))
    with opened_material(open_evidence([bundle], key=keys / "audit.key"), plan, silent) as opened:
        view, key = prompt_view(opened.material, FORWARD_ONLY, plan, Grants())
    assert key.problems == ()
    assert [text.tokens.tolist() for text in key.texts] == expected.tolist()
    assert {text.num_prompt for text in key.texts} == {batch.shape[1]}
    for text, tokens in zip(view.texts, expected, strict=True):
        with torch.no_grad():
            rows = view.model.head(tokens[None, :-1])[0]
        torch.testing.assert_close(text.forward, rows, rtol=1e-4, atol=1e-4)


def test_a_node_that_loses_every_session_ends_it_with_the_cause(
    start_node: Callable[..., Any], connect: Callable[..., Any], batch: torch.Tensor
) -> None:
    """After as many new sessions as the settings say."""
    node = start_node()
    link = connect(node, recovery=RecoverySettings(attempts=2))
    lost = restarting(node, link, *range(3, 99))
    with pytest.raises(UnavailableError, match=r"and 2 new ones; the last time: .*the session is unknown"):
        link.split_model().generate(batch, **OPTIONS)
    assert len(lost) == 3


@pytest.mark.parametrize(
    ("recovery", "match"),
    [
        (RecoverySettings(attempts=0), "the session is unknown"),
        (RecoverySettings(history_bytes=3 * 13 * 48 * 4), "no longer kept"),
    ],
)
def test_without_a_history_the_lost_session_is_the_error(
    start_node: Callable[..., Any],
    connect: Callable[..., Any],
    batch: torch.Tensor,
    recovery: RecoverySettings,
    match: str,
) -> None:
    """Switched off, or longer than what may be kept; afterwards the same model cannot go on in silence."""
    node = start_node()
    link = connect(node, recovery=recovery)
    restarting(node, link, 4)
    with pytest.raises(StateError, match=match):
        link.split_model().generate(batch, **OPTIONS)
