"""Secret mixup: what crosses is a mixture, what is restored is the row, and decoys are mixtures of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from splitwire.errors import SettingsError, StateError
from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms import MechanismInputs
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.clip_noise import ClipNoiseSettings
from tln.mechanisms.decoys import DecoySettings
from tln.mechanisms.mixup import Mixup, MixupSettings
from tln.pipeline import FramePipeline, FrameSettings, build_pipeline, check_frame

MECHANISMS = ("bottleneck", "clip_noise", "mixup", "decoys", "permutation")
FRAME = FrameSettings(
    mechanisms=MECHANISMS,
    bottleneck=BottleneckSettings(width=8),
    clip_noise=ClipNoiseSettings(1.0, 1e-7),
    mixup=MixupSettings(pool_size=64),
    decoys=DecoySettings(count=8, pool_size=256),
)


def _full(keys: FrameKeys, rows: torch.Tensor, share: float = 0.75) -> Mixup:
    mixup = Mixup(MixupSettings(share, pool_size=len(rows)), keys)
    mixup.absorb(ProtectedFrame(rows.unsqueeze(0)))
    return mixup


def _primed(pipeline: FramePipeline, context: StepContext) -> int:
    generator, num = torch.Generator().manual_seed(3), 0
    while not pipeline.is_ready:
        pipeline.prime(torch.randn(4, 4, 12, generator=generator), context)
        num += 1
    return num


def test_every_row_is_mixed_with_a_pool_row_of_its_own(frame_keys: FrameKeys) -> None:
    """The mixture minus the row's share is a row of the pool, and rows of a frame differ in theirs."""
    pool = torch.randn(64, 8)
    rows = torch.randn(3, 16, 8)
    released = _full(frame_keys, pool).protect(ProtectedFrame(rows), StepContext(1)).rows
    partners = (released - 0.75 * rows) / 0.25
    distance, chosen = (partners.flatten(0, 1)[:, None] - pool).abs().amax(dim=-1).min(dim=1)
    assert distance.max() < 1e-5
    assert len(set(chosen.tolist())) > 16


def test_partners_are_fresh_every_step_and_follow_from_the_keys(frame_keys: FrameKeys) -> None:
    """A step protected again is the same bytes; another step is not."""
    mixup, frame = _full(frame_keys, torch.randn(64, 8)), ProtectedFrame(torch.randn(2, 4, 8))
    first, again, other = (mixup.protect(frame, StepContext(step)).rows for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_the_restore_gives_the_row_back_and_the_gradient_its_share(frame_keys: FrameKeys) -> None:
    """Exact when the rows come back as they went; the pool bears no gradient."""
    mixup, context = _full(frame_keys, torch.randn(64, 8)), StepContext(1)
    rows = torch.randn(2, 4, 8, requires_grad=True)
    released = mixup.protect(ProtectedFrame(rows), context).rows
    torch.testing.assert_close(mixup.restore(released, context), rows, rtol=1e-5, atol=1e-6)
    released.sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.full_like(rows, 0.75))


def test_training_rows_enter_the_pool_unmixed_and_evaluation_leaves_it(frame_keys: FrameKeys) -> None:
    """Else partners would be mixtures of mixtures; held-out text stays out of training frames."""
    mixup = _full(frame_keys, torch.zeros(8, 4))
    held_out, training = torch.full((1, 8, 4), 2.0), torch.full((1, 8, 4), 1.0)
    mixup.protect(ProtectedFrame(held_out), StepContext(1))
    mixup.protect(ProtectedFrame(training), StepContext(2, mode="train"))
    everything, _ = mixup.pool.take(torch.arange(8))
    assert torch.equal(everything, training[0])


def test_nothing_leaves_before_the_pool_is_full(frame_keys: FrameKeys) -> None:
    """Not even one frame with fewer partners."""
    mixup = Mixup(MixupSettings(pool_size=16), frame_keys)
    mixup.absorb(ProtectedFrame(torch.randn(1, 15, 4)))
    assert not mixup.is_ready
    with pytest.raises(StateError, match="15 of 16"):
        mixup.protect(ProtectedFrame(torch.randn(1, 2, 4)), StepContext(1))


def test_decoys_are_mixtures_too(
    mechanism_inputs: Callable[..., MechanismInputs], step_context: Callable[..., StepContext]
) -> None:
    """Norms of real and decoy rows have one distribution; with unmixed decoys the real ones would stand out."""
    pipeline = build_pipeline(FRAME, mechanism_inputs())
    _primed(pipeline, step_context(0, 4, 4))
    generator = torch.Generator().manual_seed(5)
    real_norms, decoy_norms = [], []
    for step in range(1, 60):
        frame = pipeline.protect(torch.randn(4, 4, 12, generator=generator), step_context(step, 4, 4))
        assert frame.truth is not None
        norms = frame.rows.detach().norm(dim=-1)
        real_norms.append(norms[frame.truth.real])
        decoy_norms.append(norms[~frame.truth.real])
    real, decoy = torch.cat(real_norms), torch.cat(decoy_norms)
    auc = (real[:, None] > decoy[None, :]).double().mean().item()
    assert abs(auc - 0.5) < 0.05, "standard error about .011 at 944 real rows"
    assert real.max() <= 1.0 + 1e-4, "a mixture is never longer than the clip"


def test_effective_defence_names_it(mechanism_inputs: Callable[..., MechanismInputs]) -> None:
    """Between clipping and the decoys."""
    described = build_pipeline(FRAME, mechanism_inputs()).describe()
    assert described["mixup"] == {"share": 0.75, "pool_size": 64}
    assert list(described).index("clip") < list(described).index("mixup") < list(described).index("decoys")


@pytest.mark.parametrize(
    ("changes", "stack", "match"),
    [
        ({"mixup": MixupSettings(share=0.5)}, "gram", "share is 0.5"),
        ({"mixup": MixupSettings(share=1.0)}, "gram", "share is 1.0"),
        ({"mixup": MixupSettings(share=float("nan"))}, "gram", "share is nan"),
        ({"mixup": MixupSettings(pool_size=1)}, "gram", "pool_size is 1"),
        ({"mechanisms": ("bottleneck", "mixup")}, "gram", "clip_noise"),
        ({"mechanisms": ("clip_noise", "mixup")}, "transformer", "mixup is refused on the transformer"),
        ({"mechanisms": ("bottleneck",)}, "gram", "mixup is configured but"),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, object], stack: str, match: str) -> None:
    """Before anything is loaded."""
    settings = replace(FRAME, **{"clip_noise": ClipNoiseSettings(), "decoys": DecoySettings()} | changes)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=match):
        check_frame(settings, stack)  # type: ignore[arg-type]
