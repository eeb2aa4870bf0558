"""The private encoder and decoder."""

from __future__ import annotations

import torch

from tln.context import ProtectedFrame, StepContext
from tln.mechanisms.bottleneck import Bottleneck


def _bottleneck(seed: int = 1) -> Bottleneck:
    return Bottleneck(12, 4, torch.Generator().manual_seed(seed))


def test_latents_are_narrow_and_bounded() -> None:
    """Width D, every value within (-1, 1)."""
    frame = _bottleneck().protect(ProtectedFrame(torch.randn(3, 5, 12) * 100), StepContext(1))
    assert frame.rows.shape == (3, 5, 4)
    assert frame.rows.abs().max() <= 1


def test_restore_adds_the_decoded_rows_to_the_hidden_rows() -> None:
    """The residual never crossed: without decoded rows the head's own rows come back."""
    bottleneck, context, hidden = _bottleneck(), StepContext(1), torch.randn(2, 5, 12)
    latents = bottleneck.protect(ProtectedFrame(hidden), context).rows
    torch.nn.init.zeros_(bottleneck.decoder[-1].weight)
    torch.nn.init.zeros_(bottleneck.decoder[-1].bias)
    assert torch.equal(bottleneck.restore(latents, context), hidden)


def test_both_halves_get_gradients() -> None:
    """Autograd reaches encoder and decoder through one round trip."""
    bottleneck, context = _bottleneck(), StepContext(1)
    latents = bottleneck.protect(ProtectedFrame(torch.randn(2, 5, 12)), context).rows
    bottleneck.restore(latents, context).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in bottleneck.parameters())


def test_weights_come_from_the_given_generator_only() -> None:
    """The same generator gives the same weights, another gives others, torch's global one is not used."""
    torch.manual_seed(5)
    first = _bottleneck().encoder[1].weight
    torch.manual_seed(6)
    assert torch.equal(first, _bottleneck().encoder[1].weight)
    assert not torch.equal(first, _bottleneck(2).encoder[1].weight)
