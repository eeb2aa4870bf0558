"""Rows of whole texts from every hop, in wire order.

A text is cut where the answers of the untrusted node end: what was sent last, before one side went away, was never
answered. A hop that carried nothing of a text gives None; one with a gap in the middle too.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from auditor.evidence.sources import FrameSource
from auditor.views.sequences import Piece, TextPieces
from splitwire.v1 import channels_pb2


@dataclass(frozen=True, eq=False)
class TextRows:
    """Rows [T, H] of one text on each hop, as float32."""

    forward: torch.Tensor
    returned: torch.Tensor | None
    gradient: torch.Tensor | None
    input_gradient: torch.Tensor | None


def text_rows(sources: Sequence[FrameSource], texts: Sequence[TextPieces], *, training: bool) -> list[TextRows | None]:
    """The rows of every text; None where its FORWARD rows are not whole. In training the gradients come too."""
    hops = [channels_pb2.HOP_FORWARD, channels_pb2.HOP_RETURN]
    hops += [channels_pb2.HOP_BACKWARD, channels_pb2.HOP_INPUT_GRADIENT] if training else []
    columns = [_rows_of_hop(sources, texts, hop) for hop in hops]
    found: list[TextRows | None] = []
    for number, text in enumerate(texts):
        forward, returned, *gradients = [column[number] for column in columns]
        num_answered = _num_leading(returned)
        kept = num_answered or len(text.pieces)
        rows = _joined(forward[:kept])
        if rows is None:
            found.append(None)
            continue
        backward, inputs = [_joined(pieces) for pieces in gradients] if training else (None, None)
        found.append(TextRows(rows, _joined(returned[:kept]), backward, inputs))
    return found


def cut_to(text: TextPieces, num_positions: int) -> TextPieces:
    """The text up to a position."""
    kept: list[Piece] = []
    left = num_positions
    for piece in text.pieces:
        if left <= 0:
            break
        kept.append(replace(piece, count=min(piece.count, left)))
        left -= piece.count
    return replace(text, pieces=tuple(kept))


def _rows_of_hop(
    sources: Sequence[FrameSource], texts: Sequence[TextPieces], hop: Any
) -> list[list[torch.Tensor | None]]:
    """Rows of every piece of every text on one hop."""
    wanted: dict[tuple[str, int], list[tuple[int, int, Piece]]] = defaultdict(list)
    for number, text in enumerate(texts):
        for place, piece in enumerate(text.pieces):
            wanted[text.session, piece.step].append((number, place, piece))
    rows: list[list[torch.Tensor | None]] = [[None] * len(text.pieces) for text in texts]
    for frame in frames_of(sources, hop, {session for session, _ in wanted}):
        for number, place, piece in wanted.pop((frame.session_hash, int(frame.header.step)), []):
            tensor = frame.tensor
            if (
                tensor.ndim == len("NRH")
                and piece.sequence < len(tensor)
                and piece.first + piece.count <= len(tensor[0])
            ):
                part = tensor[piece.sequence, piece.first : piece.first + piece.count]
                rows[number][place] = part.float().clone()
    return rows


def frames_of(sources: Sequence[FrameSource], hop: Any, sessions: set[str]) -> Iterator[Any]:
    """Frames of one hop of these sessions."""
    for source in sources:
        for frame in source.frames(hop):
            if frame.session_hash in sessions:
                yield frame


def _num_leading(pieces: Sequence[torch.Tensor | None]) -> int:
    """How many pieces there are before the first that is missing."""
    return next((number for number, piece in enumerate(pieces) if piece is None), len(pieces))


def _joined(pieces: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    whole = [piece for piece in pieces if piece is not None]
    if len(whole) < len(pieces) or len({piece.shape[1] for piece in whole}) != 1:
        return None
    return torch.cat(whole)
