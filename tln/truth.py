"""Writes what each wire row really is into the sealed truth file, one record a FORWARD frame, before the frame is sent.

The record carries the digest of the very bytes that cross, so that it joins with any bundle that recorded them. The
truth file is sealed to the auditor's key; nothing of it crosses, and no attack sees it.

Refused: a frame about which nothing is known. A bundle whose truth has gaps cannot pass, so a gap stops the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import torch

from splitwire.bundles import TruthRecord, TruthWriter, frame_digest
from splitwire.errors import RecordingError
from tln.context import ComputeMode, RowTruth, StepContext
from tln.crossing import Crossing

_PHASES: Final[dict[ComputeMode, Literal["train", "evaluate", "generate"]]] = {
    "train": "train",
    "evaluate": "evaluate",
    "cached": "generate",
}


def record_truth(crossing: Crossing, writer: TruthWriter) -> Callable[[], None]:
    """Has every FORWARD frame of the crossing recorded; returns what ends it. The caller closes the writer."""

    def listen(context: StepContext, truth: RowTruth | None, messages: Sequence[bytes]) -> None:
        writer.add(truth_record(crossing.session_hash, context, truth, messages))

    crossing.forward_listeners.append(listen)
    return lambda: crossing.forward_listeners.remove(listen)


def truth_record(
    session_hash: str, context: StepContext, truth: RowTruth | None, messages: Sequence[bytes]
) -> TruthRecord:
    """The record of one frame; RecordingError when the truth about its rows is not known."""
    if truth is None:
        raise RecordingError(
            f"the truth about the rows of step {context.step} is not known",
            remedy="give the step its tokens, or run without a truth file",
        )
    return TruthRecord(
        session_hash=session_hash,
        step=context.step,
        forward_digest=frame_digest(messages),
        phase=_PHASES[context.mode],
        real=truth.real.cpu().numpy().astype(np.bool_),
        order=_int32(truth.order),
        token=_int32(truth.token),
        label=_int32(truth.label),
        document=_int32(truth.document),
    )


def _int32(values: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return values.cpu().numpy().astype(np.int32)
