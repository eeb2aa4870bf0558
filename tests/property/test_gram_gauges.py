"""The gram surrogate commutes with every gauge that it may be used under, and with no other that it is refused for."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2

NUM_FRAMES = 2

seeds = st.integers(0, 2**31)
row_counts = st.integers(2, 9)
widths = st.integers(2, 24)


def network(width: int, *, radial: bool, sign_invariant: bool, generator: torch.Generator) -> GramNetwork:
    shape = stack_pb2.GramSettings(
        width=width, num_experts=8, num_layers=2, radial=radial, sign_invariant=sign_invariant
    )
    return GramNetwork(shape, generator).double()


def frames(rows: int, width: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(NUM_FRAMES, rows, width, generator=generator, dtype=torch.float64)


def rotation(width: int, generator: torch.Generator) -> torch.Tensor:
    """A random matrix of O(width), proper or not."""
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q


@settings(max_examples=40, deadline=None)
@given(seeds, row_counts, widths, st.booleans(), st.booleans())
@torch.no_grad()
def test_rows_may_be_permuted(seed: int, rows: int, width: int, radial: bool, sign_invariant: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = network(width, radial=radial, sign_invariant=sign_invariant, generator=generator)
    data, order = frames(rows, width, generator), torch.randperm(rows, generator=generator)
    torch.testing.assert_close(net(data[:, order]), net(data)[:, order], rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds, row_counts, widths, st.booleans(), st.booleans())
@torch.no_grad()
def test_rows_may_be_rotated(seed: int, rows: int, width: int, radial: bool, sign_invariant: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = network(width, radial=radial, sign_invariant=sign_invariant, generator=generator)
    data, turn = frames(rows, width, generator), rotation(width, generator)
    torch.testing.assert_close(net(data @ turn), net(data) @ turn, rtol=1e-8, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(seeds, row_counts, widths)
@torch.no_grad()
def test_rows_may_be_scaled_and_signed_without_the_radial_part(seed: int, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = network(width, radial=False, sign_invariant=True, generator=generator)
    data = frames(rows, width, generator)
    scale = torch.exp(0.75 * torch.randn(NUM_FRAMES, rows, 1, generator=generator, dtype=torch.float64)).clamp(0.2, 5)
    sign = torch.where(torch.rand(NUM_FRAMES, rows, 1, generator=generator) < 0.5, -1.0, 1.0).double()
    torch.testing.assert_close(net(data * scale * sign), net(data) * scale * sign, rtol=1e-8, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(seeds, row_counts, widths)
@torch.no_grad()
def test_rows_may_be_signed_with_the_radial_part(seed: int, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    net = network(width, radial=True, sign_invariant=True, generator=generator)
    data = frames(rows, width, generator)
    sign = torch.where(torch.rand(NUM_FRAMES, rows, 1, generator=generator) < 0.5, -1.0, 1.0).double()
    torch.testing.assert_close(net(data * sign), net(data) * sign, rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_signs_break_the_plain_network_and_scales_the_radial_one() -> None:
    """Why the two settings exist: the error without them is plain to see."""
    generator = torch.Generator().manual_seed(11)
    data = frames(8, 16, generator)
    sign = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64).reshape(1, 8, 1)
    plain = network(16, radial=False, sign_invariant=False, generator=generator)
    assert (plain(data * sign) - plain(data) * sign).abs().max() > 1e-3
    radial = network(16, radial=True, sign_invariant=True, generator=generator)
    assert (radial(data * 3.0) - radial(data) * 3.0).abs().max() > 1e-3
