"""The real small model over the real wire, defences off, equals the unsplit model: logits, loss and gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from splitwire.backbone import load_whole
from tln.connect import connect
from tln.connection import ConnectionSettings
from tln.gradient_policy import OpenGradient
from tln.settings import TlnSettings
from tln.stack_settings import StackSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RTOL = 1e-4


def close(split: torch.Tensor, whole: torch.Tensor) -> None:
    """Equal at rtol 1e-4; what is near zero is compared on the scale of the tensor."""
    split, whole = split.detach(), whole.detach()
    torch.testing.assert_close(split, whole, rtol=RTOL, atol=RTOL * float(whole.abs().max()))


def test_logits_loss_and_gradients_are_those_of_the_whole(node) -> None:
    ids = torch.randint(1000, (2, 24), generator=torch.Generator().manual_seed(0))
    whole = load_whole(node.model)
    expected = whole(input_ids=ids, labels=ids)
    expected.loss.backward()
    connection = ConnectionSettings(address=node.address, tls=node.tln, connect_timeout_seconds=120)
    settings = replace(TlnSettings(), model=node.model, connection=connection, stack=StackSettings(trainable="full"))
    with connect(settings, mode="training", make_policy=lambda _parts: OpenGradient()) as split:
        model = split.model
        result = model(input_ids=ids, labels=ids)
        result.loss.backward()
        squared_norm_middle = model.crossing.squared_gradient_norm()
        close(result.logits, expected.logits)
        torch.testing.assert_close(result.loss.detach(), expected.loss.detach(), rtol=RTOL, atol=0)
        for part, layers in ((model.head, whole.model.layers[:5]), (model.tail, whole.model.layers[25:])):
            for ours, theirs in zip(part.body.layers.parameters(), layers.parameters(), strict=True):
                close(ours.grad, theirs.grad)
        close(model.head.embedding.weight.grad, whole.model.embed_tokens.weight.grad)
        close(model.tail.body.norm.weight.grad, whole.model.norm.weight.grad)
    gradients = [parameter.grad for parameter in whole.model.layers[5:25].parameters()]
    expected_norm = sum(float(gradient.double().square().sum()) for gradient in gradients)
    assert squared_norm_middle == pytest.approx(expected_norm, rel=2 * RTOL)
