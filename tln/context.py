"""What the parts of the trusted node know about one step, and what a protected frame is.

A StepContext never leaves the trusted node: it holds tokens, labels and document indices. Of its fields only `step`,
`mode`, `cache_id`, `row_lengths` and `padding_side` go into a frame header. A mechanism keeps what its restore needs in
`stash` under its own name. RowTruth is for the sealed truth file and for the scorer alone.

Legend: B sequences, T positions, N frames, R wire rows a frame, D width of a wire row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from splitwire.errors import SettingsError

ComputeMode = Literal["evaluate", "train", "cached"]
PaddingSide = Literal["left", "right", ""]

NO_LABEL = -100
"""The label of a row that has no next token; the value that transformers' losses ignore."""

NO_DOCUMENT = -1
"""The document index of a row that belongs to none, such as a row of a prompt."""


@dataclass
class StepContext:
    """One step as the trusted node sees it. Trusted node only, except for the fields the module docstring names.

    `row_lengths` is empty when every sequence fills all T positions; `padding_side` is then "". `tokens` and
    `labels` (the token after each position, NO_LABEL for none) are int64 [B, T]; `documents` is int64 [B], indices
    into the truth file's documents table; `positions` is int64 [B, T], the place of each row within its text (None:
    counted from 0, padding included). The last `num_replayed` sequences are earlier blocks that stand in for
    decoys; of sequence b only the first `real_lengths[b]` rows are sent (None: all). `priming` numbers the batches that
    fill pools before the first step and do not cross.
    """

    step: int
    mode: ComputeMode = "evaluate"
    cache_id: int = 0
    row_lengths: tuple[int, ...] = ()
    padding_side: PaddingSide = ""
    tokens: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    documents: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    num_replayed: int = 0
    real_lengths: torch.Tensor | None = None
    priming: int = 0
    stash: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowTruth:
    """What each wire row really is. Every tensor is [N, R], on the CPU. For the sealed truth file, never for the wire.

    `real` is bool; `order` is the position t within its text;
    `token` is the token id of the row and `label` the next one (NO_LABEL where there is none); `document` indexes the
    documents table (NO_DOCUMENT for none).
    """

    real: torch.Tensor
    order: torch.Tensor
    token: torch.Tensor
    label: torch.Tensor
    document: torch.Tensor


@dataclass(frozen=True)
class ProtectedFrame:
    """Rows [N, R, D] as they may cross, and the truth about them (None when nobody asked for it)."""

    rows: torch.Tensor
    truth: RowTruth | None = None


def row_lengths_of(mask_BT: torch.Tensor | None) -> tuple[tuple[int, ...], PaddingSide]:
    """The lengths and the padding side of a 2-D attention mask; ((), "") when nothing is padded.

    SettingsError when a row is empty, or when the real positions are not one block on one side in every row: lengths
    are all that crosses, so any other mask has no honest form on the wire.
    """
    if mask_BT is None:
        return (), ""
    if mask_BT.ndim != 2:
        raise SettingsError(
            f"attention_mask has {mask_BT.ndim} dimensions; only [sequences, positions] can cross as lengths",
            remedy="pass a 2-D mask of zeros and ones",
        )
    real_BT = mask_BT != 0
    if bool(real_BT.all()):
        return (), ""
    lengths = real_BT.sum(dim=1)
    if bool((lengths == 0).any()):
        raise SettingsError(
            "attention_mask has a sequence without a real position", remedy="drop empty sequences from the batch"
        )
    positions = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    if bool(torch.equal(real_BT, positions < lengths[:, None])):
        return tuple(lengths.tolist()), "right"
    if bool(torch.equal(real_BT, positions >= mask_BT.shape[1] - lengths[:, None])):
        return tuple(lengths.tolist()), "left"
    raise SettingsError(
        "attention_mask has holes or pads both sides; only row lengths cross",
        remedy="pad all sequences of a batch on one side (tokenizer.padding_side)",
    )
