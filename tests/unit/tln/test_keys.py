"""The run key's streams: derived one way, never overlapping, and distributed as they claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitwire.errors import SettingsError
from tln.keys import KEY_BYTES, FrameKeys, KeyStream, RunKey

SECRET = bytes(range(KEY_BYTES))


def _stream(purpose: str = "test") -> KeyStream:
    return RunKey(SECRET).stream("session", 1, purpose)


def test_the_same_place_gives_the_same_numbers() -> None:
    """A step protected again after a crash is the same bytes."""
    assert np.array_equal(_stream().normals(3, 5), _stream().normals(3, 5))


@pytest.mark.parametrize(
    ("scope", "step", "purpose"),
    [("session2", 1, "test"), ("session", 2, "test"), ("session", 1, "test2"), ("sessio", 1, "ntest")],
)
def test_another_place_gives_other_numbers(scope: str, step: int, purpose: str) -> None:
    """Scope, step and purpose are told apart, also where their texts run together."""
    other = RunKey(SECRET).stream(scope, step, purpose).uniforms(64)
    assert not np.array_equal(_stream().uniforms(64), other)


def test_another_run_key_gives_other_numbers() -> None:
    """Nothing but the secret decides."""
    assert not np.array_equal(RunKey.generate().stream("s", 1, "p").uniforms(8), _stream().uniforms(8))


def test_a_stream_goes_on() -> None:
    """Two calls take what one call would have taken."""
    stream = _stream()
    both = np.concatenate((stream.uniforms(10), stream.uniforms(6)))
    assert np.array_equal(both, _stream().uniforms(16))


def test_uniforms_are_open_and_even() -> None:
    """Never 0 or 1, mean and variance of a uniform."""
    values = _stream().uniforms(200_000)
    assert values.min() > 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 5 / np.sqrt(12 * 200_000)
    assert abs(values.var() - 1 / 12) < 2e-3


@pytest.mark.parametrize("count", [1, 7, 200_001])
def test_normals_have_the_asked_shape(count: int) -> None:
    """Odd counts too, and all finite."""
    values = _stream().normals(count)
    assert values.shape == (count,)
    assert np.isfinite(values).all()


def test_a_key_of_another_length_is_refused() -> None:
    """The message names both lengths and no byte."""
    with pytest.raises(SettingsError, match="32 bytes, got 5"):
        RunKey(b"short")


def test_the_secret_is_not_shown() -> None:
    """A log line with the key in it shows nothing."""
    assert SECRET.hex() not in repr(RunKey(SECRET))
    assert repr(SECRET) not in repr(RunKey(SECRET))


def test_permutations_hold_every_index_once() -> None:
    """One permutation a frame, frames independent."""
    orders = _stream().permutations(50, 11)
    assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(11), (50, 1)))
    assert len({tuple(order) for order in orders}) > 45


def test_permutations_are_the_order_of_uniforms() -> None:
    """A slow sort of the same uniforms, frame by frame, gives the same."""
    uniforms = _stream().uniforms(4, 7)
    expected = [sorted(range(7), key=lambda place, row=row: row[place]) for row in uniforms]
    assert _stream().permutations(4, 7).tolist() == expected


@pytest.mark.parametrize("size", [0, 1])
def test_small_permutations(size: int) -> None:
    """Nothing to shuffle is no error."""
    assert _stream().permutations(3, size).shape == (3, size)


@pytest.mark.parametrize(("population", "size"), [(10, 10), (10, 3), (1000, 80)])
def test_subsets_have_no_repetition(population: int, size: int) -> None:
    """No index twice in one frame, all within the population."""
    chosen = _stream().subsets(40, population, size)
    assert chosen.min() >= 0
    assert chosen.max() < population
    assert all(len(set(row)) == size for row in chosen.tolist())


def test_rotations_are_orthogonal() -> None:
    """Norms and inner products stay; independent for every frame."""
    rotations = _stream().rotations(5, 16)
    identity = torch.eye(16, dtype=torch.float64)
    assert torch.allclose(rotations @ rotations.transpose(1, 2), identity.expand(5, 16, 16), atol=1e-12)
    assert not torch.allclose(rotations[0], rotations[1])


def test_rotations_match_slow_reflections() -> None:
    """One reflection after the other, written out, on the same Gaussians."""
    width = 5
    gaussians = iter(_stream().normals(2, width * (width + 1) // 2).reshape(-1))
    for rotation in _stream().rotations(2, width).numpy():
        lower = np.zeros((width, width))
        for row in range(width):
            for column in range(row + 1):
                lower[row, column] = next(gaussians)
        expected, signs = np.eye(width), np.sign(np.diag(lower))
        for place in range(width - 1):
            vector = lower[:, place].copy()
            vector[place] += signs[place] * np.linalg.norm(vector)
            expected = expected @ (np.eye(width) - 2 * np.outer(vector, vector) / (vector @ vector))
        signs[:-1] *= -1
        assert rotation == pytest.approx(expected * signs, abs=1e-12)


@pytest.mark.parametrize("width", [1, 2])
def test_small_rotations_are_orthogonal(width: int) -> None:
    """A rotation of one coordinate is a sign."""
    rotations = _stream().rotations(9, width)
    assert torch.allclose(rotations @ rotations.mT, torch.eye(width, dtype=torch.float64), atol=1e-12)
    assert 0 < int((torch.linalg.det(rotations) > 0).sum()) < 9


def test_frame_keys_need_a_scope() -> None:
    """Noise of no session would repeat in the next one."""
    with pytest.raises(RuntimeError, match="no session"):
        FrameKeys(RunKey(SECRET)).stream(1, "noise")


def test_bound_frame_keys_are_the_run_keys_streams() -> None:
    """An audit that opens the run key finds the same numbers."""
    keys = FrameKeys(RunKey(SECRET))
    keys.bind("session")
    assert np.array_equal(keys.stream(1, "test").uniforms(4), _stream().uniforms(4))


def test_a_generator_is_derived_not_global() -> None:
    """Initial weights come from the run key and leave torch's own generator alone."""
    before = torch.get_rng_state()
    first = torch.rand(3, generator=_stream().generator())
    assert torch.equal(first, torch.rand(3, generator=_stream().generator()))
    assert torch.equal(before, torch.get_rng_state())
