"""With the tap between the two nodes results are the same, and the tap keeps the bytes that the trusted node sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from auditor.perturbation import PerturbSettings, Schedule, perturbation_of
from auditor.tap import Tap, TapSettings
from splitwire.bundles import WireRecord, open_bundle, verify_bundle
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2
from tln.stack_settings import StackSettings

WAIT_SECONDS = 20
TENSOR_HOPS = (
    channels_pb2.HOP_FORWARD,
    channels_pb2.HOP_RETURN,
    channels_pb2.HOP_BACKWARD,
    channels_pb2.HOP_INPUT_GRADIENT,
)


class RunningTap:
    """A tap on the event loop of the nodes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: TapSettings) -> None:
        self._loop = loop
        self._tap = self._run(Tap.start(settings))
        self.settings = replace(settings, listen=self._tap.address)
        self.is_running = True

    def stop(self) -> None:
        """Completes the bundle."""
        if self.is_running:
            self.is_running = False
            self._run(self._tap.stop(0.1))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_SECONDS)


@pytest.fixture
def start_tap(
    loop: asyncio.AbstractEventLoop, pki: dict[str, TlsFiles], tmp_path: Path
) -> Iterator[Callable[..., RunningTap]]:
    """start_tap(node, listen=...) -> a tap in front of a node."""
    taps: list[RunningTap] = []

    def start(node: Any, listen: str = "127.0.0.1:0", **changes: Any) -> RunningTap:
        out = tmp_path / f"bundle{len(taps)}"
        settings = TapSettings(listen=listen, upstream=node.settings.listen, out=out, tls=pki["tap"], **changes)
        taps.append(RunningTap(loop, settings))
        return taps[-1]

    yield start
    for tap in taps:
        tap.stop()


def _train(link: Any, batch: torch.Tensor, steps: int = 3) -> list[float]:
    model = link.split_model()
    losses = []
    for _ in range(steps):
        loss = model(batch, labels=batch).loss
        loss.backward()
        link.crossing.optimizer_step(1e-3, 1.0, 0.0)
        link.crossing.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_training_through_the_tap_is_training(
    start_node: Callable[..., Any], connect: Callable[..., Any], start_tap: Callable[..., Any], batch: torch.Tensor
) -> None:
    stack = StackSettings(trainable="full")
    direct = _train(connect(start_node(), "training", stack), batch)
    node = start_node()
    tap = start_tap(node)
    tapped = _train(connect(node, "training", stack, address=tap.settings.listen), batch)
    assert tapped == direct
    assert tapped[-1] < tapped[0]


def test_the_tap_and_the_trusted_node_record_the_same_payloads(
    start_node: Callable[..., Any], connect: Callable[..., Any], start_tap: Callable[..., Any], batch: torch.Tensor
) -> None:
    node = start_node()
    tap = start_tap(node)
    seen: list[WireRecord] = []
    stack = StackSettings(trainable="full")
    link = connect(node, "training", stack, observers=(seen.append,), address=tap.settings.listen)
    _train(link, batch)
    link.transport.close()
    tap.stop()
    bundle = open_bundle(tap.settings.out)
    assert verify_bundle(tap.settings.out).problems == []
    assert bundle.sessions() == [link.transport.session_hash]
    for hop in (*TENSOR_HOPS, channels_pb2.HOP_CONTROL):
        for direction in ("request", "response"):
            ours = [(r.kind, r.message) for r in seen if (r.hop, r.direction) == (hop, direction)]
            taps = [(r.kind, r.message) for r in bundle.messages(hop) if r.direction == direction]
            assert taps == ours, (hop, direction)
    steps = {hop: [frame.header.step for frame in bundle.frames(hop)] for hop in TENSOR_HOPS}
    assert len(steps[channels_pb2.HOP_FORWARD]) == 3
    assert len({tuple(numbers) for numbers in steps.values()}) == 1


def test_a_tap_that_is_replaced_in_mid_session_costs_a_retry_and_no_step(
    start_node: Callable[..., Any], connect: Callable[..., Any], start_tap: Callable[..., Any], batch: torch.Tensor
) -> None:
    node = start_node()
    first = start_tap(node)
    link = connect(node, "training", StackSettings(trainable="full"), address=first.settings.listen)
    losses = _train(link, batch, 2)
    first.stop()
    second = start_tap(node, first.settings.listen)
    losses += _train(link, batch, 1)
    assert losses[2] < losses[1] < losses[0]
    link.transport.close()
    second.stop()
    numbers = [
        [frame.header.step for frame in open_bundle(tap.settings.out).frames(channels_pb2.HOP_FORWARD)]
        for tap in (first, second)
    ]
    assert [len(steps) for steps in numbers] == [2, 1]
    assert numbers[0][-1] < numbers[1][0]


def test_a_session_is_restored_through_the_tap(
    start_node: Callable[..., Any], connect: Callable[..., Any], start_tap: Callable[..., Any], batch: torch.Tensor
) -> None:
    """The node behind it is started again in the middle of a generation; the tap records both sessions."""
    node = start_node()
    tap = start_tap(node)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    link = connect(node, stack=StackSettings(max_cache_positions=64), address=tap.settings.listen)
    seen: list[str] = []

    def guard(_route: Any, _messages: Any) -> None:
        seen.append(link.crossing.session_hash)
        if len(seen) == 4:
            node.stop()
            node.start()

    link.crossing.guards.append(guard)
    ours = link.split_model().generate(batch, **options)
    assert torch.equal(ours, link.whole_model().generate(batch, **options))
    link.transport.close()
    tap.stop()
    assert set(open_bundle(tap.settings.out).sessions()) == set(seen)
    assert len(set(seen)) == 2


def test_generation_through_the_tap_is_identical(
    start_node: Callable[..., Any], connect: Callable[..., Any], start_tap: Callable[..., Any], batch: torch.Tensor
) -> None:
    node = start_node()
    tap = start_tap(node)
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    tapped = connect(node, address=tap.settings.listen).split_model().generate(batch, **options)
    direct = connect(node).split_model().generate(batch, **options)
    assert torch.equal(tapped, direct)


def test_an_active_tap_changes_the_scheduled_frames_and_no_other_and_training_survives(
    start_node: Callable[..., Any], connect: Callable[..., Any], start_tap: Callable[..., Any], batch: torch.Tensor
) -> None:
    node = start_node()
    perturb = PerturbSettings(mode="direction", amplitude=0.3, every=2, seed=4)
    tap, passive = start_tap(node, perturb=perturb), start_tap(node)
    stack = StackSettings(trainable="full")
    link = connect(node, "training", stack, address=tap.settings.listen)
    losses = _train(link, batch, 8)
    assert all(math.isfinite(loss) for loss in losses)
    link.transport.close()
    honest = connect(node, "training", stack, address=passive.settings.listen)
    _train(honest, batch, 1)
    honest.transport.close()
    tap.stop()
    passive.stop()
    bundle = open_bundle(tap.settings.out)
    assert bundle.recorder == "active-tap"
    assert perturbation_of(bundle.settings) == perturb
    assert verify_bundle(tap.settings.out).problems == []
    schedule, (session,) = Schedule(perturb), bundle.sessions()
    frames = {frame.header.step: frame for frame in bundle.frames(channels_pb2.HOP_RETURN)}
    amplitudes = [schedule.amplitude(session, step, channels_pb2.HOP_RETURN) for step in frames]
    assert len(frames) == 8
    assert 0 < sum(amplitude > 0 for amplitude in amplitudes) < 8
    # The first step computes the same in both sessions, so the unperturbed bytes are known.
    untouched = next(iter(open_bundle(passive.settings.out).frames(channels_pb2.HOP_RETURN))).tensor
    first = next(iter(frames.values()))
    expected = untouched + amplitudes[0] * untouched.norm(dim=-1, keepdim=True) * torch.from_numpy(
        schedule.directions(session, first.header.step, channels_pb2.HOP_RETURN, untouched.shape)
    )
    torch.testing.assert_close(first.tensor, expected)
