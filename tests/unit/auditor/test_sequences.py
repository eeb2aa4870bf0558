"""Texts are put together from headers and cache messages alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from auditor.views.sequences import FoundTexts, find_texts
from splitwire.bundles import WireRecord
from splitwire.v1 import channels_pb2, stack_pb2

SESSION = "5e55107a5e55107a"


class Wire:
    """Messages of one session, as a bundle gives them."""

    def __init__(self, session: str = SESSION) -> None:
        self.problems: list[str] = []
        self._session, self._step, self._records = session, 0, list[WireRecord]()

    def frame(self, num: int, width: int, *, cache: int = 1, mode: str = "CACHED", **header: Any) -> Wire:
        self._step += 1
        told = stack_pb2.FrameHeader(
            hop=channels_pb2.HOP_FORWARD,
            step=self._step,
            dtype=stack_pb2.WIRE_DTYPE_BF16,
            shape=[num, width, 4],
            cache_id=cache,
            compute_mode=stack_pb2.ComputeMode.Value(f"COMPUTE_MODE_{mode}"),
            **header,
        )
        message = stack_pb2.ExchangeRequest(frame=stack_pb2.Frame(header=told))
        return self._add(channels_pb2.HOP_FORWARD, message)

    def control(self, **action: Any) -> Wire:
        self._step += 1
        control = stack_pb2.Control(step=self._step, **action)
        return self._add(channels_pb2.HOP_CONTROL, stack_pb2.ExchangeRequest(control=control))

    def again(self) -> Wire:
        """The last message once more, as after a stream that broke."""
        self._records.append(self._records[-1])
        return self

    def messages(self, hop: Any = None, session: str | None = None) -> Iterator[WireRecord]:
        del hop, session
        return iter(self._records)

    def frames(self, hop: Any, session: str | None = None) -> Iterator[Any]:
        del hop, session
        return iter(())

    def _add(self, hop: Any, message: Any) -> Wire:
        self._records.append(
            WireRecord(hop, "request", self._session, message.SerializeToString(), 1, 1, "ExchangeRequest")
        )
        return self


def _texts(*wires: Wire, training: bool = False) -> FoundTexts:
    return find_texts(wires, training=training)


def _places(found: FoundTexts) -> list[list[tuple[int, int, int, int]]]:
    return [[(p.step, p.sequence, p.first, p.count) for p in text.pieces] for text in found.texts]


def test_a_prompt_in_parts_and_its_answer_are_one_text() -> None:
    """Sent again and seen by two recorders, it still is one."""
    wire = Wire().frame(1, 4).frame(1, 3).again().frame(1, 1).frame(1, 1)
    found = _texts(wire, wire)
    assert _places(found) == [[(1, 0, 0, 4), (2, 0, 0, 3), (3, 0, 0, 1), (4, 0, 0, 1)]]
    assert (found.texts[0].num_prompt, found.texts[0].num_positions) == (7, 9)
    assert found.texts[0].wire_dtype == "bf16"


def test_padding_is_no_position() -> None:
    """On either side, by the public header."""
    left = Wire().frame(2, 5, row_lengths=[5, 2], padding_side=stack_pb2.PADDING_SIDE_LEFT).frame(2, 1)
    assert _places(_texts(left)) == [[(1, 0, 0, 5), (2, 0, 0, 1)], [(1, 1, 3, 2), (2, 1, 0, 1)]]
    right = Wire().frame(2, 5, row_lengths=[5, 2], padding_side=stack_pb2.PADDING_SIDE_RIGHT)
    assert _places(_texts(right))[1] == [(1, 1, 0, 2)]


def test_beams_and_rollbacks_are_followed() -> None:
    """A reorder copies what came before; a crop takes positions back, padding counted; a release ends the text."""
    beams = Wire().frame(1, 3).control(cache_reorder={"cache_id": 1, "indices": [0, 0]}).frame(2, 1)
    beams.control(cache_reorder={"cache_id": 1, "indices": [1, 1]}).frame(2, 1)
    assert _places(_texts(beams)) == [
        [(1, 0, 0, 3), (3, 1, 0, 1), (5, 0, 0, 1)],
        [(1, 0, 0, 3), (3, 1, 0, 1), (5, 1, 0, 1)],
    ]
    rolled = Wire().frame(1, 3).frame(1, 4).control(cache_crop={"cache_id": 1, "num_positions": 5}).frame(1, 1)
    assert _places(_texts(rolled)) == [[(1, 0, 0, 3), (2, 0, 0, 2), (4, 0, 0, 1)]]
    whole = Wire().frame(1, 3).frame(1, 2).control(cache_crop={"cache_id": 1, "num_positions": 3}).frame(1, 1)
    assert _places(_texts(whole)) == [[(1, 0, 0, 3), (4, 0, 0, 1)]]
    ended = Wire().frame(1, 3).control(cache_release={"cache_id": 1}).frame(1, 2)
    assert _places(_texts(ended)) == [[(1, 0, 0, 3)], [(3, 0, 0, 2)]]


def test_what_contradicts_itself_is_left_out_with_the_reason() -> None:
    """And the other caches of the session are read."""
    grown = Wire().frame(1, 3).frame(1, 2, cache=2).frame(2, 1).frame(1, 1, cache=2)
    found = _texts(grown)
    assert _places(found) == [[(2, 0, 0, 2), (4, 0, 0, 1)]]
    assert dict(found.left_out) == {"the batch of a cache changed its size without a reorder": 1}
    wrong = _texts(Wire().frame(1, 3).control(cache_reorder={"cache_id": 1, "indices": [4]}))
    assert not wrong.texts
    assert wrong.left_out.total() == 1
    assert not _texts(Wire().frame(1, 3, row_lengths=[9])).texts


def test_training_and_generation_are_told_apart() -> None:
    """A question about one does not read the frames of the other."""
    both = Wire().frame(2, 6, mode="TRAIN").frame(1, 3)
    assert _places(_texts(both, training=True)) == [[(1, 0, 0, 6)], [(1, 1, 0, 6)]]
    assert _places(_texts(both)) == [[(2, 0, 0, 3)]]
    assert (_texts(both).num_cached, _texts(both).num_train) == (1, 1)
