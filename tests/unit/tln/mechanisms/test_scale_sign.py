"""The scale-and-sign gauge: hides norms, is undone on rows and gradients, and fits the surrogate it demands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from splitwire.errors import SettingsError
from splitwire.gram import GramNetwork
from splitwire.v1 import stack_pb2
from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms import MechanismInputs
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.scale_sign import ScaleSign, ScaleSignSettings, check_surrogate
from tln.pipeline import FrameSettings, build_pipeline, check_frame

ROWS = torch.randn(3, 40, 16, generator=torch.Generator().manual_seed(5))


def gauge(keys: FrameKeys) -> ScaleSign:
    return ScaleSign(ScaleSignSettings(), keys)


def surrogate(*, radial: bool, sign_invariant: bool) -> GramNetwork:
    shape = stack_pb2.GramSettings(width=16, num_experts=8, num_layers=2, radial=radial, sign_invariant=sign_invariant)
    return GramNetwork(shape, torch.Generator().manual_seed(2))


def test_factors_are_of_the_stated_distribution(frame_keys: FrameKeys) -> None:
    """Both signs alike, sizes log-normal with the stated spread, clamped at both ends and nowhere else."""
    factors = gauge(frame_keys).draw(1, torch.zeros(50, 400, 1, dtype=torch.float64))
    assert factors.shape == (50, 400, 1)
    assert abs((factors > 0).double().mean() - 0.5) < 0.02
    sizes = factors.abs()
    assert sizes.min() == 0.2
    assert sizes.max() == 5.0
    inner = sizes[(sizes > 0.2) & (sizes < 5.0)].log()
    assert abs(inner.median()) < 0.03
    assert abs((inner.abs() < 0.75).double().mean() - 0.6827 / 0.9681) < 0.02


def test_norms_on_the_wire_no_longer_tell_norms(frame_keys: FrameKeys) -> None:
    """Rows of one norm cross with norms that differ by more than ten times; the sizes of cosines stay."""
    rows = torch.nn.functional.normalize(ROWS, dim=-1)
    sent = gauge(frame_keys).protect(ProtectedFrame(rows), StepContext(1)).rows
    norms = sent.norm(dim=-1)
    assert norms.max() / norms.min() > 10
    unit = torch.nn.functional.normalize(sent, dim=-1)
    cosines = (unit @ unit.transpose(1, 2)).abs()
    assert torch.allclose(cosines, (rows @ rows.transpose(1, 2)).abs(), atol=1e-5)


def test_it_is_undone_and_fresh_every_step(frame_keys: FrameKeys) -> None:
    """Restore gives the rows back; another step has other factors."""
    mechanism, contexts = gauge(frame_keys), (StepContext(1), StepContext(2))
    first, second = (mechanism.protect(ProtectedFrame(ROWS), context).rows for context in contexts)
    assert not torch.allclose(first, second)
    assert torch.allclose(mechanism.restore(first, contexts[0]), ROWS, atol=1e-5)


def test_gradients_are_undone_the_other_way_round(frame_keys: FrameKeys) -> None:
    """A gradient row that left through autograd is found again by undo_gradient, and not by undo."""
    mechanism, context = gauge(frame_keys), StepContext(1)
    mechanism.protect(ProtectedFrame(ROWS), context)
    returned = ROWS.clone().requires_grad_()
    mechanism.restore(returned, context).backward(ROWS)  # type: ignore[no-untyped-call]
    assert returned.grad is not None
    secret = mechanism.draw(1, ROWS)
    assert torch.allclose(mechanism.undo_gradient(returned.grad, secret), ROWS, atol=1e-5)
    assert not torch.allclose(mechanism.undo(returned.grad, secret), ROWS, atol=1e-2)


@pytest.mark.parametrize(
    ("radial", "sign_invariant", "fits"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_the_surrogate_computes_the_same_under_it(
    mechanism_inputs: Callable[..., MechanismInputs], radial: bool, sign_invariant: bool, fits: bool
) -> None:
    """Through all three gauges the surrogate gives what it gives without them, exactly where it is not refused."""
    names = ("bottleneck", "permutation", "scale_sign", "rotation")
    pipeline = build_pipeline(
        FrameSettings(mechanisms=names, bottleneck=BottleneckSettings(width=8)), mechanism_inputs()
    )
    gauges = list(pipeline.mechanisms)[1:]
    assert [mechanism.name for mechanism in gauges] == ["permutation", "scale_sign", "rotation"]
    network, context, frame = surrogate(radial=radial, sign_invariant=sign_invariant), StepContext(1), ROWS
    with torch.no_grad():
        for mechanism in gauges:
            frame = mechanism.protect(ProtectedFrame(frame), context).rows  # type: ignore[operator]
        returned = network(frame)
        for mechanism in reversed(gauges):
            returned = mechanism.restore(returned, context)  # type: ignore[operator]
        assert torch.allclose(returned, network(ROWS), atol=1e-4) == fits
    if fits:
        check_surrogate(radial=radial, sign_invariant=sign_invariant)
    else:
        with pytest.raises(SettingsError, match=r"scale_sign is refused with stack\.gram"):
            check_surrogate(radial=radial, sign_invariant=sign_invariant)


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (ScaleSignSettings(log_spread=0.0), "log_spread is 0.0"),
        (ScaleSignSettings(log_spread=float("inf")), "log_spread is inf"),
        (ScaleSignSettings(smallest=0.0), "smallest 0.0"),
        (ScaleSignSettings(largest=0.5), "largest 0.5"),
        (ScaleSignSettings(largest=float("nan")), "largest nan"),
    ],
)
def test_unusable_scales_are_named(section: ScaleSignSettings, named: str) -> None:
    """A factor of 0 cannot be undone, and one that is always 1 hides nothing."""
    with pytest.raises(SettingsError, match=named):
        check_frame(FrameSettings(mechanisms=("bottleneck", "scale_sign"), scale_sign=section), "gram")
