"""What an active tap makes of returned frames, for each dtype of the wire; and what it leaves as it came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from auditor.perturbation import LEVELS, PerturbMode, PerturbSettings, Schedule, perturbation_of
from auditor.tap.rewriting import PassThrough, Perturber
from splitwire import wire
from splitwire.errors import SettingsError
from splitwire.frames import FrameAssembler, encode_frame, wire_dtype
from splitwire.settings import to_tree
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "0123456789abcdef" * 2
HASH = wire.session_hash(SESSION)
RETURN, INPUT_GRADIENT = channels_pb2.HOP_RETURN, channels_pb2.HOP_INPUT_GRADIENT
ALWAYS = PerturbSettings(mode="direction", amplitude=0.4, every=1, seed=5)
SHAPE = (2, 7, 16)


def _attach() -> bytes:
    return stack_pb2.ExchangeRequest(attach=stack_pb2.Attach(session_id=SESSION)).SerializeToString()


def _forward(step: int, mode: Any = stack_pb2.COMPUTE_MODE_TRAIN) -> bytes:
    header = stack_pb2.FrameHeader(
        hop=channels_pb2.HOP_FORWARD, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32, compute_mode=mode
    )
    return next(iter(encode_frame(header, torch.ones(SHAPE))))


def _returned(step: int, dtype: str = "fp32", hop: Any = RETURN, chunk_bytes: int = 50) -> list[bytes]:
    rows = torch.randn(SHAPE, generator=torch.Generator().manual_seed(step))
    header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=wire_dtype(dtype))
    return list(encode_frame(header, rows, chunk_bytes=chunk_bytes))


def _decoded(messages: list[bytes]) -> torch.Tensor:
    assembler = FrameAssembler()
    frames = [assembler.feed(stack_pb2.ExchangeResponse.FromString(message).frame) for message in messages]
    assert frames[-1] is not None
    return frames[-1].tensor.float()


def _passed(perturber: Perturber, messages: list[bytes]) -> list[bytes]:
    return [out for message in messages for out in perturber.response(message)] + perturber.rest()


def _perturber(settings: PerturbSettings = ALWAYS, steps: int = 40) -> Perturber:
    perturber = Perturber(settings)
    perturber.request(_attach())
    for step in range(1, steps):
        perturber.request(_forward(step))
    return perturber


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("mode", ["direction", "sign"])
def test_rows_move_by_the_schedule_and_the_framing_stays(dtype: str, mode: PerturbMode) -> None:
    settings = PerturbSettings(mode=mode, amplitude=0.4, every=1, seed=5)
    sent = _returned(3, dtype)
    passed = _passed(_perturber(settings), sent)
    assert [len(message) for message in passed] == [len(message) for message in sent]
    before, after = _decoded(sent), _decoded(passed)
    schedule = Schedule(settings)
    amplitude = schedule.amplitude(HASH, 3, RETURN)
    assert amplitude in [0.4 * level for level in LEVELS]
    change = (
        amplitude * before.norm(dim=-1, keepdim=True) * torch.from_numpy(schedule.directions(HASH, 3, RETURN, SHAPE))
    )
    tolerance = {"fp32": 1e-6, "bf16": 1e-2, "fp16": 1e-3, "int8": 2e-2}[dtype]
    torch.testing.assert_close(after, before + change, atol=2 * tolerance, rtol=tolerance)
    headers = [stack_pb2.ExchangeResponse.FromString(message).frame.header for message in (sent[0], passed[0])]
    assert headers[0] == headers[1]


def test_a_frame_sent_again_is_changed_alike_and_in_chunks_of_any_size() -> None:
    small, large = (_returned(2, chunk_bytes=size) for size in (33, 1 << 20))
    assert _passed(_perturber(), small) == _passed(_perturber(), small) != small
    assert torch.equal(_decoded(_passed(_perturber(), small)), _decoded(_passed(_perturber(), large)))


def test_control_steps_other_hops_and_other_modes_pass_byte_for_byte() -> None:
    half = PerturbSettings(mode="sign", every=3, seed=1)
    perturber, schedule = _perturber(half, 200), Schedule(half)
    changed = [step for step in range(1, 200) if schedule.amplitude(HASH, step, RETURN) > 0]
    assert 40 < len(changed) < 95
    for step in range(1, 200):
        sent = _returned(step)
        assert (_passed(perturber, sent) != sent) == (step in changed)
    always = _perturber()
    gradient = _returned(2, hop=INPUT_GRADIENT)
    assert _passed(always, gradient) == gradient
    both = _perturber(PerturbSettings(mode="direction", every=1, hops=("return", "input_gradient")))
    assert _passed(both, gradient) != gradient
    evaluation = Perturber(ALWAYS)
    evaluation.request(_attach())
    evaluation.request(_forward(2, stack_pb2.COMPUTE_MODE_EVALUATE))
    assert _passed(evaluation, _returned(2)) == _returned(2)


def test_what_breaks_the_contract_passes_as_it_came() -> None:
    sent = _returned(2)
    control = stack_pb2.ExchangeResponse(control_result=stack_pb2.ControlResult(step=9)).SerializeToString()
    header = stack_pb2.FrameHeader(hop=RETURN, step=2, dtype=stack_pb2.WIRE_DTYPE_FP32, shape=[1, 1], total_bytes=4)
    not_finite = stack_pb2.ExchangeResponse(
        frame=stack_pb2.Frame(header=header, data=np.float32("nan").tobytes())
    ).SerializeToString()
    wrong_size = stack_pb2.ExchangeResponse(frame=stack_pb2.Frame(header=header, data=b"12345")).SerializeToString()
    header.shape[:] = [4_000_000_000, 9]
    too_large = stack_pb2.ExchangeResponse(frame=stack_pb2.Frame(header=header, data=b"1234")).SerializeToString()
    for messages in (
        sent[:3],
        [*sent[:3], control, *sent[3:]],
        [b"\xff\xff", b""],
        [not_finite],
        [wrong_size],
        [too_large],
        [*sent[:2], not_finite],
    ):
        assert _passed(_perturber(), messages) == messages


def test_an_interrupted_frame_does_not_spoil_the_next_one() -> None:
    perturber = _perturber()
    passed = _passed(perturber, [*_returned(2)[:2], *_returned(3)])
    assert passed[:2] == _returned(2)[:2]
    assert passed[2:] == _passed(_perturber(), _returned(3))


def test_a_passive_tap_holds_nothing() -> None:
    through = PassThrough()
    through.request(b"any")
    assert through.response(b"other") == [b"other"]
    assert through.rest() == []


def test_the_schedule_of_a_bundle_comes_back_from_its_settings() -> None:
    assert perturbation_of({"listen": "x", "perturb": to_tree(ALWAYS)}) == ALWAYS
    assert not perturbation_of({"listen": "x"}).is_active
    with pytest.raises(SettingsError, match=r"perturb\.mode is none"):
        PerturbSettings(seed=3).check()
    with pytest.raises(SettingsError, match=r"perturb\.hops is empty"):
        PerturbSettings(mode="sign", hops=()).check()
