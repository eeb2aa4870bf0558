"""The private frame as a whole, and what its settings refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from splitwire.errors import SettingsError, StateError
from splitwire.settings import build
from tln.context import StepContext
from tln.mechanisms import MECHANISMS, MechanismInputs
from tln.mechanisms.bottleneck import BottleneckSettings
from tln.mechanisms.clip_noise import ClipNoiseSettings
from tln.mechanisms.decoys import DecoySettings
from tln.pipeline import FramePipeline, FrameSettings, build_pipeline, check_frame

MakeInputs = Callable[..., MechanismInputs]
MakeContext = Callable[..., StepContext]

FULL = FrameSettings(
    mechanisms=("rotation", "decoys", "bottleneck", "clip_noise", "permutation"),
    bottleneck=BottleneckSettings(width=8),
    decoys=DecoySettings(count=6, pool_size=40),
)


def _primed(inputs: MechanismInputs, step_context: MakeContext, settings: FrameSettings = FULL) -> FramePipeline:
    pipeline = build_pipeline(settings, inputs)
    while not pipeline.is_ready:
        pipeline.prime(torch.randn(3, 4, 12), step_context(0, 3, 4))
    return pipeline


def test_an_empty_pipeline_is_the_identity(step_context: MakeContext) -> None:
    """The very same tensor goes out and comes back."""
    pipeline, context, hidden = FramePipeline(), step_context(1, 2, 4), torch.randn(2, 4, 12)
    assert pipeline.protect(hidden, context).rows is hidden
    assert pipeline.restore(hidden, context) is hidden


def test_the_order_of_names_does_not_decide_the_order_of_mechanisms(mechanism_inputs: MakeInputs) -> None:
    """Clip comes before the pool, noise after it, gauges last."""
    assert list(build_pipeline(FULL, mechanism_inputs()).describe()) == [
        "bottleneck",
        "clip",
        "decoys",
        "noise",
        "permutation",
        "rotation",
    ]


def test_a_full_frame_goes_out_and_back(mechanism_inputs: MakeInputs, step_context: MakeContext) -> None:
    """80-row style frames out, hidden rows back, with truth that names as many real rows as there are."""
    pipeline, context = _primed(mechanism_inputs(), step_context), step_context(1, 3, 4)
    frame = pipeline.protect(torch.randn(3, 4, 12), context)
    assert frame.rows.shape == (3, 10, 8)
    assert frame.truth is not None
    assert frame.truth.real.sum(dim=1).tolist() == [4, 4, 4]
    assert pipeline.restore(frame.rows, context).shape == (3, 4, 12)
    assert not context.stash


def test_without_noise_and_with_an_honest_echo_the_latents_come_back(
    mechanism_inputs: MakeInputs, step_context: MakeContext
) -> None:
    """Gauges and decoys are undone exactly: restore decodes the very latents that were encoded."""
    settings = FrameSettings(
        mechanisms=FULL.mechanisms,
        bottleneck=FULL.bottleneck,
        decoys=FULL.decoys,
        clip_noise=ClipNoiseSettings(clip_norm=100.0, noise_multiplier=1e-9),
    )
    pipeline, context, hidden = (
        _primed(mechanism_inputs(), step_context, settings),
        step_context(1, 3, 4),
        torch.randn(3, 4, 12),
    )
    back = pipeline.restore(pipeline.protect(hidden, context).rows, context)
    bottleneck = pipeline.mechanisms[0]
    expected = hidden + bottleneck.decoder(bottleneck.encoder(hidden))
    assert torch.allclose(back, expected, atol=1e-4)


def test_nothing_goes_out_before_the_pool_is_full(mechanism_inputs: MakeInputs, step_context: MakeContext) -> None:
    """The request stops; there is no frame with fewer decoys."""
    pipeline = build_pipeline(FULL, mechanism_inputs())
    pipeline.prime(torch.randn(3, 4, 12), step_context(0, 3, 4))
    with pytest.raises(StateError, match="decoys is not ready"):
        pipeline.protect(torch.randn(3, 4, 12), step_context(1, 3, 4))


def test_the_pool_holds_clipped_rows_before_noise(mechanism_inputs: MakeInputs, step_context: MakeContext) -> None:
    """No released row is ever in the pool: pool rows have at most the clip norm, released rows far more."""
    settings = FrameSettings(
        mechanisms=FULL.mechanisms,
        bottleneck=FULL.bottleneck,
        decoys=FULL.decoys,
        clip_noise=ClipNoiseSettings(clip_norm=0.5, noise_multiplier=5.0),
    )
    pipeline = _primed(mechanism_inputs(), step_context, settings)
    released = pipeline.protect(torch.randn(3, 4, 12), step_context(1, 3, 4)).rows
    pool = pipeline.mechanisms[2].pool.take(torch.arange(40))[0]
    assert pool.norm(dim=-1).max() <= 0.5 + 1e-6
    assert released.norm(dim=-1).min() > 1.0


def test_the_untrusted_gradient_is_clipped_by_row(mechanism_inputs: MakeInputs, step_context: MakeContext) -> None:
    """What the untrusted node sends back cannot move private weights further than the clip allows."""
    sizes = []
    for scale in (1e3, 1e6):
        pipeline = _primed(mechanism_inputs(), step_context)
        frame = pipeline.protect(torch.ones(3, 4, 12).cumsum(-1), step_context(1, 3, 4))
        frame.rows.backward(torch.full_like(frame.rows, scale))
        sizes.append(pipeline.mechanisms[0].encoder[3].weight.grad.norm().item())
    assert sizes[0] > 0
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-4)


def test_the_local_part_has_no_decoys_and_no_gauges(mechanism_inputs: MakeInputs) -> None:
    """Calibration on public text needs no pool."""
    assert list(build_pipeline(FULL, mechanism_inputs()).local().describe()) == ["bottleneck", "clip", "noise"]


@pytest.mark.parametrize("name", ["bottleneck", "permutation", "scale_sign", "rotation"])
def test_what_the_transformer_stack_refuses(name: str) -> None:
    """Refused with the reason, not dropped."""
    with pytest.raises(SettingsError, match=f"{name} is refused on the transformer stack: "):
        check_frame(FrameSettings(mechanisms=(name,)), "transformer")


@pytest.mark.parametrize(
    ("mechanisms", "stack", "named"),
    [
        ((), "gram", "needs the bottleneck"),
        (("bottleneck", "decoys", "permutation"), "gram", "without clip_noise"),
        (("bottleneck", "decoys", "clip_noise"), "gram", "without permutation"),
        (("decoys",), "transformer", "without clip_noise"),
        (("bottleneck", "bottleneck"), "gram", "twice"),
        (("blender",), "gram", "unknown"),
    ],
)
def test_what_the_registry_refuses(mechanisms: tuple[str, ...], stack: str, named: str) -> None:
    """A mechanism without those that make it one is an error, not a weaker defence."""
    with pytest.raises(SettingsError, match=named):
        check_frame(FrameSettings(mechanisms=mechanisms), stack)  # type: ignore[arg-type]


def test_settings_of_a_mechanism_that_is_off_are_refused() -> None:
    """A setting that claims a mechanism fails when the mechanism is off."""
    with pytest.raises(SettingsError, match=r"frame\.decoys is configured but decoys is not in"):
        check_frame(FrameSettings(decoys=DecoySettings(count=5)), "transformer")


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (ClipNoiseSettings(clip_norm=0.0), "clip_norm is 0.0"),
        (ClipNoiseSettings(noise_multiplier=float("nan")), "noise_multiplier is nan"),
        (ClipNoiseSettings(noise_multiplier=-1.0), "noise_multiplier is -1.0"),
    ],
)
def test_unusable_noise_is_named(section: ClipNoiseSettings, named: str) -> None:
    """A clip without noise, or noise of no scale, hides nothing."""
    with pytest.raises(SettingsError, match=named):
        check_frame(FrameSettings(mechanisms=("clip_noise",), clip_noise=section), "transformer")


def test_every_mechanism_is_found_by_its_name_and_settings_are_a_file() -> None:
    """The registry and the TOML section agree."""
    tree = {"mechanisms": list(MECHANISMS), "bottleneck": {"width": 16}}
    assert build(FrameSettings, tree, "test").bottleneck.width == 16
    assert all(name == spec.name for name, spec in MECHANISMS.items())
