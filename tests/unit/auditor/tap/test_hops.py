"""The hop of a message is read from its tags alone, and agrees with the generated parser."""

from __future__ import annotations

import pytest
import torch

from auditor.tap import hops
from auditor.tap.hops import HopReader
from splitwire.frames import encode_frame
from splitwire.v1 import channels_pb2, stack_pb2

FORWARD, BACKWARD, CONTROL = channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD, channels_pb2.HOP_CONTROL


def _frame(hop: channels_pb2.Hop, step: int = 1) -> list[bytes]:
    header = stack_pb2.FrameHeader(hop=hop, step=step, dtype=stack_pb2.WIRE_DTYPE_FP32)
    return list(encode_frame(header, torch.randn(2, 8, 16), chunk_bytes=300))


def test_field_numbers_are_those_of_the_contract() -> None:
    request = stack_pb2.ExchangeRequest.DESCRIPTOR.fields_by_name
    response = stack_pb2.ExchangeResponse.DESCRIPTOR.fields_by_name
    assert request["attach"].number == hops.ATTACH_FIELD
    assert request["frame"].number == response["frame"].number == hops.FRAME_FIELD
    assert stack_pb2.Frame.DESCRIPTOR.fields_by_name["header"].number == hops.HEADER_FIELD
    assert stack_pb2.FrameHeader.DESCRIPTOR.fields_by_name["hop"].number == hops.HOP_FIELD
    assert stack_pb2.Attach.DESCRIPTOR.fields_by_name["session_id"].number == hops.SESSION_FIELD


@pytest.mark.parametrize("hop", [FORWARD, BACKWARD, channels_pb2.HOP_RETURN, channels_pb2.HOP_INPUT_GRADIENT])
def test_every_chunk_of_a_frame_belongs_to_its_hop(hop: channels_pb2.Hop) -> None:
    reader = HopReader()
    messages = _frame(hop)
    assert len(messages) > 2
    assert {reader.read(message) for message in messages} == {hop}


def test_frames_and_control_messages_in_turn_keep_their_hops() -> None:
    reader = HopReader()
    control = stack_pb2.ExchangeRequest(control=stack_pb2.Control(step=2, zero_grad=stack_pb2.ZeroGrad()))
    first, second = _frame(FORWARD), _frame(BACKWARD)
    seen = [reader.read(message) for message in [*first, control.SerializeToString(), *second]]
    assert seen == [FORWARD] * len(first) + [CONTROL] + [BACKWARD] * len(second)


def test_attach_is_control_and_names_the_session() -> None:
    reader = HopReader()
    attach = stack_pb2.ExchangeRequest(attach=stack_pb2.Attach(session_id="ab" * 16))
    assert reader.read(attach.SerializeToString()) == CONTROL
    assert reader.session_id == "ab" * 16


def test_a_header_after_its_data_is_found_as_the_parser_finds_it() -> None:
    header = stack_pb2.FrameHeader(hop=BACKWARD, step=3).SerializeToString()
    body = b"\x1a\x04data" + b"\x0a" + bytes([len(header)]) + header
    message = b"\x12" + bytes([len(body)]) + body
    assert stack_pb2.ExchangeRequest.FromString(message).frame.header.hop == BACKWARD
    assert HopReader().read(message) == BACKWARD


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff", b"\x12\x7f", b"\x12\x03\x0a\x09\x08", b"\x0b", b"\x00", b"\x0a\x03\x0a\x01\xff", b"\x80" * 12],
    ids=["empty", "cut tag", "cut frame", "cut header", "group", "field 0", "session not ASCII", "endless varint"],
)
def test_what_is_no_message_of_the_contract_is_control(message: bytes) -> None:
    assert HopReader().read(message) == CONTROL


def test_a_hop_that_is_not_a_tensors_is_control() -> None:
    for hop in (0, 5, 9):
        header = bytes([0x08, hop])
        frame = b"\x0a" + bytes([len(header)]) + header
        assert HopReader().read(b"\x12" + bytes([len(frame)]) + frame) == CONTROL
