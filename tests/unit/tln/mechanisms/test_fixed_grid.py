"""The fixed grid: what crosses is what the rest of the step saw, one scale for all rows, straight-through backwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from splitwire.errors import FrameError, SettingsError
from splitwire.frames import FrameAssembler, encode_frame, quantise_rows
from splitwire.v1 import channels_pb2, stack_pb2
from tln.context import ProtectedFrame, StepContext
from tln.mechanisms.fixed_grid import FixedGrid, FixedGridSettings
from tln.pipeline import FrameSettings, check_frame
from tln.settings import TlnSettings, _check_grid
from tln.stack_settings import StackSettings

LIMIT = 2.5


def _on_grid(rows: torch.Tensor) -> torch.Tensor:
    return FixedGrid(LIMIT).protect(ProtectedFrame(rows), StepContext(1)).rows


def _crossed(rows: torch.Tensor, grid_scale: float) -> tuple[torch.Tensor, list[stack_pb2.Frame]]:
    header = stack_pb2.FrameHeader(hop=channels_pb2.HOP_FORWARD, step=1, dtype=stack_pb2.WIRE_DTYPE_INT8_ROW)
    assembler, frames, result = FrameAssembler(), [], None
    for message in encode_frame(header, rows, grid_scale=grid_scale):
        frames.append(stack_pb2.ExchangeRequest.FromString(message).frame)
        result = assembler.feed(frames[-1])
    assert result is not None
    return result.tensor, frames


def test_rows_cross_bit_for_bit_and_are_within_half_a_step() -> None:
    """The receiver decodes the very rows that the trusted node went on with."""
    rows = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(1)).clamp(-LIMIT, LIMIT)
    on_grid = _on_grid(rows)
    received, _ = _crossed(on_grid, FixedGrid(LIMIT).scale)
    assert torch.equal(received, on_grid)
    error = float((on_grid - rows).abs().max())
    assert 0 < error <= FixedGrid(LIMIT).scale / 2 * 1.0001


def test_the_scales_on_the_wire_are_one_number_whatever_the_rows() -> None:
    """With a scale a row they tell the largest value of each row; here they are all the grid step."""
    rows = torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(2)) * torch.linspace(0.1, 1.0, 20)[:, None]
    _, frames = _crossed(_on_grid(rows), FixedGrid(LIMIT).scale)
    scales = torch.frombuffer(bytearray(frames[0].data), dtype=torch.float32, count=40)
    assert set(scales.tolist()) == {FixedGrid(LIMIT).scale}
    assert len(set(quantise_rows(rows)[1].flatten().tolist())) == 40


def test_values_beyond_the_limit_are_clamped_and_get_no_gradient() -> None:
    """Straight-through inside the range, zero where a value was clamped."""
    rows = torch.tensor([[[0.011, -1.0, 9.0, -9.0]]], requires_grad=True)
    on_grid = _on_grid(rows)
    (on_grid * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(on_grid[0, 0, 2:], torch.tensor([LIMIT, -LIMIT]))
    assert rows.grad is not None
    assert rows.grad.flatten().tolist() == [1.0, 2.0, 0.0, 0.0]


@pytest.mark.parametrize("rows", [torch.tensor([[[0.011]]]), torch.tensor([[[90.0]]])])
def test_rows_off_the_grid_are_refused_not_rounded_unseen(rows: torch.Tensor) -> None:
    """The encoder changes nothing on its own."""
    with pytest.raises(FrameError, match="not on the fixed grid"):
        _crossed(rows, 0.5)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf")])
def test_an_unusable_limit_is_refused(limit: float) -> None:
    """It names the field."""
    settings = FrameSettings(mechanisms=("clip_noise", "fixed_grid"), fixed_grid=FixedGridSettings(limit))
    with pytest.raises(SettingsError, match=r"frame\.fixed_grid\.limit"):
        check_frame(settings, "transformer")


@pytest.mark.parametrize(
    ("mechanisms", "dtype", "match"),
    [
        (("clip_noise", "fixed_grid"), "fp32", "request_dtype is fp32"),
        (("scale_sign",), "int8", "takes the secret out of scale_sign"),
    ],
)
def test_a_grid_without_int8_and_a_scale_gauge_without_a_grid_are_refused(
    mechanisms: tuple[str, ...], dtype: Any, match: str
) -> None:
    """Neither would do what it says."""
    settings = TlnSettings(frame=FrameSettings(mechanisms=mechanisms), stack=StackSettings(request_dtype=dtype))
    with pytest.raises(SettingsError, match=match):
        _check_grid(settings)
    _check_grid(dataclasses.replace(settings, stack=StackSettings(request_dtype="int8"), frame=FrameSettings()))
