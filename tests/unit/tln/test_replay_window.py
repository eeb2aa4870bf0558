"""The replay window refuses what an honest node never answers, and nothing that it may answer."""

from __future__ import annotations

import pytest
import torch

from splitwire.errors import ReplayError, SettingsError
from splitwire.v1 import channels_pb2
from tln.connection import ConnectionSettings
from tln.exchanges import Route
from tln.replay_window import ReplayWindow


def _route(step: int, hop: channels_pb2.Hop = channels_pb2.HOP_FORWARD) -> Route:
    return Route(step, hop, channels_pb2.HOP_RETURN)


def _rows(seed: int) -> torch.Tensor:
    return torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(seed))


def test_an_old_answer_to_other_rows_is_refused_and_both_steps_are_named() -> None:
    """Whatever came between."""
    window = ReplayWindow(8)
    for step in range(1, 6):
        window.check(_route(step), _rows(step), _rows(100 + step))
    with pytest.raises(ReplayError, match=r"answer to FORWARD of step 6 is the one it gave to FORWARD of step 2"):
        window.check(_route(6), _rows(6), _rows(102))


def test_the_same_rows_may_be_answered_the_same() -> None:
    """Evaluation of one batch twice, also where the second time differs in what the wire rounds away."""
    window = ReplayWindow()
    window.check(_route(1), _rows(1), _rows(2))
    window.check(_route(2), _rows(1), _rows(2))
    window.check(_route(3), _rows(1) * (1 + 2**-8), _rows(2))


def test_an_answer_of_another_hop_is_refused() -> None:
    """Returned rows are no gradient."""
    window = ReplayWindow()
    window.check(_route(1), _rows(1), _rows(2))
    with pytest.raises(ReplayError):
        window.check(_route(1, channels_pb2.HOP_BACKWARD), _rows(1), _rows(2))


def test_a_change_anywhere_in_the_beginning_is_another_answer() -> None:
    """It compares bits; that is all it does."""
    window, changed = ReplayWindow(), _rows(2).clone()
    changed[1, 19, 7] += 1e-6
    window.check(_route(1), _rows(1), _rows(2))
    window.check(_route(2), _rows(3), changed)


def test_what_says_nothing_is_let_through() -> None:
    """Zero gradients, and answers so small that they may agree by chance."""
    window = ReplayWindow()
    for step in (1, 2):
        window.check(_route(step), _rows(step), torch.zeros(2, 20, 8))
        window.check(_route(step), torch.full((1, 1, 8), float(step)), torch.ones(1, 1, 8))


def test_the_window_has_an_end_and_may_be_off() -> None:
    """Memory stays bounded: the oldest answer is forgotten."""
    window, off = ReplayWindow(3), ReplayWindow(0)
    for step in range(1, 6):
        window.check(_route(step), _rows(step), _rows(100 + step))
    window.check(_route(6), _rows(6), _rows(101))
    for step in (1, 2):
        off.check(_route(step), _rows(step), _rows(9))


def test_rows_that_change_later_do_not_change_what_is_remembered() -> None:
    """The window keeps a copy."""
    window, sent = ReplayWindow(), _rows(1)
    window.check(_route(1), sent, _rows(2))
    sent.copy_(_rows(3))
    window.check(_route(2), _rows(1), _rows(2))


@pytest.mark.parametrize("size", [-1, (1 << 16) + 1])
def test_a_size_out_of_range_is_named(size: int) -> None:
    with pytest.raises(SettingsError, match=rf"connection\.replay_window is {size}"):
        ConnectionSettings(replay_window=size)
