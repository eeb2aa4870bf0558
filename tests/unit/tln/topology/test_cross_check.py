"""The median of replicas and who is told to deviate from it; the rotation of views."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tln.context import ProtectedFrame, StepContext
from tln.keys import FrameKeys
from tln.mechanisms.rotation import Rotation
from tln.topology.replicas import median, relative_deviation

BOUND = 0.02


@given(
    honest=st.lists(st.floats(-10, 10, allow_nan=False, width=32), min_size=1, max_size=6),
    lie=st.floats(-1e6, 1e6, allow_nan=False, width=32),
    place=st.integers(0, 2),
)
def test_one_liar_of_three_cannot_move_the_median(honest: list[float], lie: float, place: int) -> None:
    """Whatever it answers, the median is the honest answer, bit for bit."""
    truth = torch.tensor([honest])
    answers = [truth, truth]
    answers.insert(place, torch.full_like(truth, lie))
    assert torch.equal(median(answers), truth)


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    """Value by value."""
    answers = [torch.tensor([[float(value), 9.0]]) for value in (8, 1, 2, 4)]
    assert torch.equal(median(answers), torch.tensor([[3.0, 9.0]]))


@pytest.mark.parametrize(("factor", "is_told"), [(1.0, False), (1.019, False), (1.021, True), (-1.0, True)])
def test_one_row_is_enough_to_be_told(factor: float, is_told: bool) -> None:
    """A lie about one row of a hundred counts as much as one about all."""
    middle = torch.nn.functional.normalize(torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(1)), dim=-1)
    answer = middle.clone()
    answer[1, 7] *= factor
    assert (relative_deviation(answer, middle) > BOUND) == is_told
    assert (relative_deviation(middle * factor, middle) > BOUND) == is_told


def test_rows_that_are_nearly_zero_do_not_make_rounding_a_lie() -> None:
    """They are judged by the mean norm; all-zero answers agree."""
    middle = torch.ones(1, 10, 4)
    middle[0, 3] = 1e-9
    answer = middle.clone()
    answer[0, 3] = -1e-9
    assert relative_deviation(answer, middle) < 1e-6
    assert relative_deviation(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)) == 0.0


def test_a_rotation_of_views_mixes_within_a_share_and_not_between(frame_keys: FrameKeys) -> None:
    """What one node gets does not depend on the other node's share; both shares are rotated differently."""
    rotation, rows = Rotation(frame_keys, num_views=2), torch.randn(3, 5, 8)
    changed = rows.clone()
    changed[..., 4:] = 0.0
    contexts = StepContext(1), StepContext(1)
    ours, theirs = (
        rotation.protect(ProtectedFrame(each), context).rows
        for each, context in zip((rows, changed), contexts, strict=True)
    )
    assert torch.equal(ours[..., :4], theirs[..., :4])
    assert not torch.allclose(ours[..., 4:], theirs[..., 4:])
    torch.testing.assert_close(rotation.restore(ours, contexts[0]), rows)
    secret = rotation.draw(1, rows)
    assert not torch.allclose(secret[:, :4, :4], secret[:, 4:, 4:])
    assert bool((secret[:, :4, 4:] == 0).all())
