"""CACHED frames of several sessions in one pass: what each gets, who may come and go, and whom an error touches.

A gate on the device's thread makes frames wait together, so which of them share a pass does not depend on timing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from splitwire.v1 import channels_pb2, stack_pb2
from ucn.settings import BatchSettings

CACHED = stack_pb2.COMPUTE_MODE_CACHED
LORA = stack_pb2.LoraSettings(rank=2, alpha=4, target_modules=["q_proj"])
NUM_SESSIONS = 8


class Crowd:
    """Sessions over one server, with the node's layers at hand."""

    def __init__(self, running: Any, client: Any, kit: Any, model: stack_pb2.ModelIdentity) -> None:
        self.running, self.kit = running, kit
        self._client, self._model = client, model
        self.streams: list[Any] = []
        self.steps: list[int] = []

    def open(self, count: int, **changes: Any) -> None:
        fields = {"model": self._model, "mode": stack_pb2.SESSION_MODE_INFERENCE, "trainable_scope": 0, **changes}
        for _ in range(count):
            self.streams.append(self._client.stream(self._client.open(self.kit.request(**fields)).session_id))
            self.steps.append(0)

    @property
    def layers(self) -> Any:
        entry = next(iter(self.running.server.table._entries.values()))
        return entry.session.stack._base

    def rows(self, number: int, positions: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(1, positions, self._model.hidden_width, generator=generator)

    def next_step(self, number: int) -> int:
        self.steps[number] += 1
        return self.steps[number]

    def send(self, number: int, rows: torch.Tensor, **header: Any) -> None:
        fields = {"compute_mode": CACHED, "cache_id": 1, **header}
        messages = self.kit.frame(channels_pb2.HOP_FORWARD, self.next_step(number), rows, **fields)
        self.streams[number].send(*messages)

    def together(self, frames: dict[int, torch.Tensor], **header: Any) -> dict[int, Any]:
        """Each session's answer, or its refusal, when all frames wait at once."""
        with self.busy_device(waiting=len(frames)):
            for number, rows in frames.items():
                self.send(number, rows, **header)
        return {number: self._received(number) for number in frames}

    def _received(self, number: int) -> Any:
        try:
            return self.streams[number].receive_tensor()
        except self.kit.refusal as refusal:
            return refusal

    @contextlib.contextmanager
    def busy_device(self, waiting: int) -> Iterator[None]:
        """Keeps the device busy until so many frames wait."""
        node, gate = self.running.server._node, threading.Event()
        busy = asyncio.run_coroutine_threadsafe(node.transformer_executor.run(gate.wait), self.running.loop)
        try:
            yield
            deadline = time.monotonic() + self.kit.wait_seconds
            while node.queue_depth < waiting + 1:
                assert time.monotonic() < deadline, "the frames did not arrive"
                time.sleep(0.002)
        finally:
            gate.set()
            busy.result(self.kit.wait_seconds)

    def passes(self) -> tuple[float, float]:
        """How many passes there were, and how many frames went through them."""
        registry = self.running.server.registry
        return tuple(registry.get_sample_value(f"ucn_batch_frames_{what}") for what in ("count", "sum"))


@pytest.fixture
def crowd(start_server: Any, connect: Any, kit: Any, tiny_settings: dict[str, Any]) -> Callable[..., Crowd]:
    """crowd(**settings) -> sessions over the tiny llama; `model` is the server's."""
    from splitwire.backbone import identity  # noqa: PLC0415 - brings transformers in

    def make(**settings: Any) -> Crowd:
        running = start_server(**{**tiny_settings, **settings})
        return Crowd(running, connect(running), kit, identity(tiny_settings["model"]))

    return make


def assert_close(actual: Any, expected: Any) -> None:
    """Up to rounding: a matrix product of more rows adds up in another order."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def expected(crowd: Crowd, histories: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [crowd.layers(rows)[:, -1:] for rows in histories]


def test_eight_sessions_get_what_each_gets_alone(crowd: Callable[..., Crowd]) -> None:
    """Prefills of 1 to 8 positions, then decode steps, all of a step in one pass."""
    sessions = crowd()
    sessions.open(NUM_SESSIONS)
    histories = [sessions.rows(number, 1 + number) for number in range(NUM_SESSIONS)]
    answers = sessions.together(dict(enumerate(histories)))
    for step in range(1, 5):
        for answer, alone in zip(answers.values(), expected(sessions, histories), strict=True):
            assert_close(answer[:, -1:], alone)
        new = {number: sessions.rows(100 * step + number, 1) for number in range(NUM_SESSIONS)}
        answers = sessions.together(new)
        histories = [torch.cat([rows, new[number]], dim=1) for number, rows in enumerate(histories)]
    assert sessions.passes() == (5, 5 * NUM_SESSIONS)


def test_sessions_join_leave_and_roll_back_between_passes(crowd: Callable[..., Crowd]) -> None:
    sessions = crowd()
    sessions.open(4)
    histories = {number: sessions.rows(number, 2 + number) for number in range(4)}
    sessions.together({number: histories[number] for number in (0, 1)})
    for step, present in enumerate([(0, 1), (2, 1), (3, 0, 1), (2, 3)], start=1):
        frames = {
            number: histories[number] if sessions.steps[number] == 0 else sessions.rows(100 * step + number, 1)
            for number in present
        }
        if step == 3:
            crop = stack_pb2.CacheCrop(cache_id=1, num_positions=2)
            sessions.streams[1].control(sessions.next_step(1), cache_crop=crop)
            histories[1] = histories[1][:, :2]
        answers = sessions.together(frames)
        for number in present:
            if frames[number] is not histories[number]:
                histories[number] = torch.cat([histories[number], frames[number]], dim=1)
            (alone,) = expected(sessions, [histories[number]])
            assert_close(answers[number][:, -1:], alone)


def test_a_refused_frame_and_one_without_an_answer_leave_the_others_alone(crowd: Callable[..., Crowd]) -> None:
    """Session 1 asks for more positions than it declared, the rows of session 2 overflow on the way."""
    sessions = crowd()
    sessions.open(1)
    sessions.open(1, max_cache_positions=2)
    sessions.open(1, response_dtype=stack_pb2.WIRE_DTYPE_FP16)
    sessions.open(1)
    frames = {0: sessions.rows(0, 3), 1: sessions.rows(1, 3), 2: 1e6 * sessions.rows(2, 3), 3: sessions.rows(3, 1)}
    answers = sessions.together(frames)
    for number in (0, 3):
        (alone,) = expected(sessions, [frames[number]])
        assert_close(answers[number][:, -1:], alone)
    assert (answers[1].code, answers[1].error) == ("RESOURCE_EXHAUSTED", "LimitError")
    assert answers[2].error == "FrameError"
    assert sessions.passes() == (1, 3)


def test_a_pass_that_fails_fails_the_session_that_made_it_fail(crowd: Callable[..., Crowd]) -> None:
    sessions = crowd()
    sessions.open(3)
    poison = 12345.0

    def fail(_module: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        if bool((arguments[0] == poison).any()):
            raise RuntimeError("a kernel failed")

    hook = sessions.layers.body.layers[0].register_forward_pre_hook(fail)
    frames = {number: sessions.rows(number, 2) for number in range(3)}
    frames[1][0, 0, 0] = poison
    answers = sessions.together(frames)
    hook.remove()
    assert answers[1].code == "INTERNAL"
    for number in (0, 2):
        (alone,) = expected(sessions, [frames[number]])
        assert_close(answers[number][:, -1:], alone)
    again = sessions.together({number: sessions.rows(10 + number, 1) for number in (0, 2)})
    both = expected(sessions, [torch.cat([frames[n], sessions.rows(10 + n, 1)], dim=1) for n in (0, 2)])
    assert_close([again[0], again[2]], both)


def test_layers_of_ones_own_run_alone(crowd: Callable[..., Crowd]) -> None:
    """A session with adapters is not in the pass of those without."""
    sessions = crowd()
    sessions.open(2)
    optimizer = stack_pb2.OptimizerSettings(beta1=0.9, beta2=0.99, epsilon=1e-8)
    training = {"mode": stack_pb2.SESSION_MODE_TRAINING, "trainable_scope": stack_pb2.TRAINABLE_SCOPE_LORA}
    sessions.open(1, **training, lora=LORA, optimizer=optimizer)
    frames = {number: sessions.rows(number, 2) for number in range(3)}
    answers = sessions.together(frames)
    assert_close([answer[:, -1:] for answer in answers.values()], expected(sessions, list(frames.values())))
    assert sessions.passes() == (1, 2)


@pytest.mark.parametrize("padding", [{}, {"row_lengths": [15], "padding_side": stack_pb2.PADDING_SIDE_LEFT}])
def test_a_long_frame_is_computed_in_pieces_and_others_go_between(
    crowd: Callable[..., Crowd], padding: dict[str, Any]
) -> None:
    sessions = crowd(batching=BatchSettings(max_rows=4, prefill_positions=6))
    sessions.open(2)
    widths: list[int] = []
    hook = sessions.layers.body.layers[0].register_forward_pre_hook(lambda _m, given: widths.append(given[0].shape[1]))
    long, short = sessions.rows(0, 20), sessions.rows(1, 2)
    with sessions.busy_device(waiting=2):
        sessions.send(0, long, **padding)
        while sessions.running.server._node.queue_depth < 2:
            time.sleep(0.002)
        sessions.send(1, short)
    answers = [stream.receive_tensor() for stream in sessions.streams]
    hook.remove()
    assert widths == [6, 2, 6, 6, 2]
    real = long[:, 5:] if padding else long
    with torch.no_grad():
        assert_close(answers[0][:, -real.shape[1] :], sessions.layers(real))
    assert_close(answers[1][:, -1:], expected(sessions, [short])[0])
    sessions.send(0, sessions.rows(5, 1))
    (alone,) = expected(sessions, [torch.cat([real, sessions.rows(5, 1)], dim=1)])
    assert_close(sessions.streams[0].receive_tensor(), alone)
