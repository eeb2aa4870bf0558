"""What a pass of the split model takes: lengths, positions, caches and outputs, checked before anything crosses.

Shapes: B sequences, T new positions.
"""

from __future__ import annotations

from typing import Any

import torch

from splitwire.errors import SettingsError
from tln.cache import SplitCache

_REFUSED_OUTPUTS = ("output_hidden_states", "output_attentions")


def check_length(past: int, num_new: int, most: int) -> None:
    """SettingsError for a pass beyond the model's `most` positions."""
    if past + num_new > most:
        raise SettingsError(
            f"{past} cached and {num_new} new positions exceed the model's {most}",
            remedy="pass a shorter prompt, or ask for fewer new tokens",
        )


def check_positions(position_ids: torch.Tensor, mask_BT: torch.Tensor | None, past: int) -> None:
    """SettingsError unless positions [B or 1, T] count along the row, with or without its padding.

    The untrusted node counts positions itself: with rotary embeddings a row that starts elsewhere is the same row, but
    positions that jump or start again are not.
    """
    num_new = position_ids.shape[-1]
    counted = torch.arange(past, past + num_new, device=position_ids.device)
    if bool((position_ids == counted).all()):
        return
    if mask_BT is not None and mask_BT.ndim == 2:
        real = mask_BT[:, -num_new:] != 0
        expected = mask_BT.long().cumsum(-1)[:, -num_new:] - 1
        if bool((position_ids.expand_as(expected) == expected)[real].all()):
            return
    raise SettingsError(
        "position_ids do not count along the row; positions do not cross and cannot be followed",
        remedy="leave position_ids out; do not pack several documents into one row",
    )


def past_length(cache: SplitCache | None) -> int:
    """Cached positions; SettingsError for a cache that is not the model's own."""
    if cache is None:
        return 0
    if not isinstance(cache, SplitCache):
        raise SettingsError(
            f"cache is a {type(cache).__name__}, which knows of one place only",
            remedy="leave it out, or pass the model's new_cache()",
        )
    return cache.get_seq_length()


def refuse_outputs(kwargs: dict[str, Any]) -> None:
    """SettingsError for what is computed on the other side alone; takes what asks for none of it out of `kwargs`."""
    for name in _REFUSED_OUTPUTS:
        if kwargs.pop(name, None):
            raise SettingsError(f"{name} is set; the delegated layers' states are not here", remedy=f"leave {name} out")
    if kwargs.pop("inputs_embeds", None) is not None:
        raise SettingsError("inputs_embeds is set", remedy="pass input_ids; the head embeds them")
