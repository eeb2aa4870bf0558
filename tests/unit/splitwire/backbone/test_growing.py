"""A layer that grows in place stores what transformers' own stores, and copies only when a block is full."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from splitwire.backbone.growing import BLOCK, GrowingLayer, room_for


def states(num_new: int, seed: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, batch, 3, num_new, 4, generator=generator)
    return keys, values


def grown_layer() -> Any:
    return GrowingLayer()


def plain_layer() -> Any:
    return DynamicLayer()  # type: ignore[no-untyped-call]


def assert_equal(layer: Any, expected: Any) -> None:
    assert torch.equal(layer.keys, expected.keys)
    assert torch.equal(layer.values, expected.values)
    assert layer.get_seq_length() == expected.get_seq_length()


def test_updates_crops_and_reorders_equal_the_plain_layer() -> None:
    layer, plain = grown_layer(), plain_layer()
    order = torch.tensor([1, 1, 0])
    for seed, num_new in enumerate((5, 1, BLOCK, 1, 2 * BLOCK + 1, 1)):
        for one in (layer, plain):
            one.update(*states(num_new, seed))
        assert_equal(layer, plain)
    for one in (layer, plain):
        one.crop(-10)
        one.update(*states(3, 20))
    assert_equal(layer, plain)
    for one in (layer, plain):
        one.reorder_cache(order)
        one.update(*states(1, 21, batch=3))
    assert_equal(layer, plain)
    for one in (layer, plain):
        one.reset()
        one.update(*states(2, 22))
    assert_equal(layer, plain)


def test_a_step_writes_in_place_until_the_block_is_full() -> None:
    layer = grown_layer()
    layer.update(*states(BLOCK - 2, 1))
    place = layer.keys.data_ptr()
    layer.update(*states(1, 2))
    layer.update(*states(1, 3))
    assert layer.keys.data_ptr() == place
    layer.update(*states(1, 4))
    assert layer.keys.data_ptr() != place
    assert [room_for(length) for length in (0, 1, BLOCK, BLOCK + 1)] == [0, BLOCK, BLOCK, 2 * BLOCK]


def test_gradients_flow_through_what_is_stored() -> None:
    layer, (first, values) = grown_layer(), states(2, 1)
    first.requires_grad_()
    layer.update(first, values)
    keys, _ = layer.update(*states(1, 2))
    keys.sum().backward()
    torch.testing.assert_close(first.grad, torch.ones_like(first))
    with torch.no_grad():
        layer.update(*states(1, 3))
    assert layer.get_seq_length() == 4


def test_inference_tensors_are_not_written_to_outside_inference_mode() -> None:
    layer, plain = grown_layer(), plain_layer()
    with torch.inference_mode():
        layer.update(*states(2, 1))
    plain.update(*states(2, 1))
    with torch.no_grad():
        for one in (layer, plain):
            one.update(*states(1, 2))
    assert_equal(layer, plain)
