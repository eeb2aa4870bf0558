"""The history of a cache must hold what the cache holds, whatever was sent, reordered, cropped and cut before."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tln.context import RowTruth, StepContext
from tln.history import SentRows, SessionHistory
from tln.prefill import parts_of

WIDTH = 3
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("reorder"), st.lists(st.integers(0, 1 << 10), min_size=1, max_size=4)),
        st.tuples(st.just("crop"), st.integers(0, 1 << 10)),
    ),
    max_size=12,
)


def truth_of(rows: torch.Tensor) -> RowTruth:
    names = rows[..., 0]
    return RowTruth(names != -1, *(names.long() + number for number in range(4)))


def check(frames: list[SentRows], held: torch.Tensor, padding: torch.Tensor) -> None:
    """Frames one after the other are the rows held, and left padding is what is left of it."""
    rows = torch.cat([frame.rows for frame in frames], dim=1)
    assert torch.equal(rows, held)
    tokens = torch.cat([frame.truth.token for frame in frames if frame.truth is not None], dim=1)
    assert torch.equal(tokens, truth_of(held).token)
    first = frames[0]
    lengths = torch.tensor(first.row_lengths or (first.num_positions,) * len(held))
    assert torch.equal(first.num_positions - lengths, padding)
    assert not any(frame.row_lengths for frame in frames[1:])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), _STEPS, st.integers(4, 6))
def test_a_history_holds_what_the_cache_holds(padding: list[int], steps: list[tuple[str, object]], most: int) -> None:
    """Against a tensor to which the same is done; also when it is sent in parts."""
    history = SessionHistory(torch.float32, 1 << 30)
    first = torch.arange(len(padding) * 4 * WIDTH, dtype=torch.float32).reshape(len(padding), 4, WIDTH)
    lengths = tuple(4 - number for number in padding) if any(padding) else ()
    history.add(first, StepContext(1, "cached", 7, lengths, "left" if lengths else ""), truth_of(first))
    held, padded = first, torch.tensor(padding)
    for number, (kind, value) in enumerate(steps):
        if kind == "add":
            assert isinstance(value, int)
            rows = torch.full((len(held), value, WIDTH), float(1000 + number)) + torch.arange(len(held))[:, None, None]
            history.add(rows, StepContext(number + 2, "cached", 7), truth_of(rows))
            held = torch.cat([held, rows], dim=1)
        elif kind == "reorder":
            assert isinstance(value, list)
            indices = [index % len(held) for index in value]
            history.reorder(7, indices)
            held, padded = held[indices], padded[indices]
        else:
            assert isinstance(value, int)
            kept = 4 + value % (held.shape[1] - 3)
            history.crop(7, kept)
            held = held[:, :kept]
    ((cache_id, whole),) = history.sent()
    assert cache_id == 7
    check([whole], held, padded)
    cut = parts_of(whole.num_positions, whole.row_lengths, whole.padding_side, most)
    check([whole.cut(part.start, part.end) for part in cut], held, padded)


@given(st.integers(1, 4), st.integers(1, 6))
def test_what_is_padded_on_the_right_is_sent_as_it_was_first(num_later: int, kept: int) -> None:
    """Two frames, since later rows follow the padding; cropped into the first, its lengths shrink."""
    history = SessionHistory(torch.float32, 1 << 30)
    first, later = torch.rand(2, 5, WIDTH), torch.rand(2, num_later, WIDTH)
    history.add(first, StepContext(1, "cached", 1, (2, 5), "right"), None)
    history.add(later, StepContext(2, "cached", 1), None)
    history.reorder(1, [1, 0])
    history.crop(1, kept)
    frames = [frame for _, frame in history.sent()]
    assert torch.equal(torch.cat([frame.rows for frame in frames], dim=1), torch.cat([first, later], 1)[[1, 0], :kept])
    assert frames[0].row_lengths == (min(kept, 5), min(kept, 2))


def test_a_history_that_grows_too_long_is_dropped_and_says_so_until_it_is_released() -> None:
    """Bytes are counted as rows are added, cropped and released."""
    history = SessionHistory(torch.bfloat16, 100)
    rows = torch.rand(1, 4, WIDTH)
    for cache_id in (1, 2, 3):
        history.add(rows, StepContext(cache_id, "cached", cache_id), None)
    assert history.num_bytes == 3 * 4 * WIDTH * 2
    history.crop(3, 1)
    history.release(2)
    assert history.num_bytes == 5 * WIDTH * 2
    for step in range(4, 9):
        history.add(rows, StepContext(step, "cached", 1), None)
    assert history.lost == {1}
    assert history.num_bytes == WIDTH * 2
    history.release(1)
    assert [cache_id for cache_id, _ in history.sent()] == [3]
