"""Which decoys the settings ask for, from the pool or replayed, and what is refused of them."""

from __future__ import annotations

from splitwire.errors import SettingsError
from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, StackName
from tln.mechanisms.decoys import DecoyRows, DecoySequences, DecoySettings
from tln.mechanisms.matched_gradient import MatchedGradient
from tln.mechanisms.replay import ReplayedRows, ReplayedSequences


def _check(settings: DecoySettings, stack: StackName) -> None:
    if settings.count < 1:
        raise SettingsError(
            f"frame.decoys.count is {settings.count}", remedy="use at least 1, or leave decoys out of frame.mechanisms"
        )
    if settings.pool_size < 2 * settings.count:
        unit = "rows" if stack == "gram" else "sequences"
        raise SettingsError(
            f"frame.decoys.pool_size {settings.pool_size} is too small for {settings.count} decoys",
            remedy=f"use at least {2 * settings.count} {unit}",
        )
    if settings.min_real_rows < 0:
        raise SettingsError(
            f"frame.decoys.min_real_rows is {settings.min_real_rows}", remedy="use 0 (all rows) or a number of rows"
        )
    if stack == "transformer":
        _check_sequences(settings)


def _check_sequences(settings: DecoySettings) -> None:
    if settings.kind == "reencoded":
        raise SettingsError(
            "frame.decoys.kind 'reencoded' has no encoder on the transformer stack",
            remedy="use 'recycled', which is the same there",
        )
    if settings.min_real_rows:
        raise SettingsError(
            "frame.decoys.min_real_rows is set and the transformer stack takes whole sequences",
            remedy="remove it, or set stack.kind = 'gram'",
        )


def _build(settings: DecoySettings, inputs: MechanismInputs) -> list[Mechanism]:
    if inputs.decoy_loss == "replay" and settings.kind == "published":
        raise SettingsError(
            "frame.decoys.kind is 'published' and gradient.policy 'replay' re-sends nothing that was released",
            remedy="choose another gradient policy, or the kind 'recycled'",
        )
    decoys = _sequences(settings, inputs) if inputs.stack == "transformer" else _rows(settings, inputs)
    if inputs.decoy_loss == "matched":
        return [decoys, MatchedGradient(settings.pool_size, inputs.stack, inputs.keys)]
    return [decoys]


def _sequences(settings: DecoySettings, inputs: MechanismInputs) -> Mechanism:
    kind = ReplayedSequences if inputs.decoy_loss == "replay" else DecoySequences
    return kind(settings, inputs.keys)


def _rows(settings: DecoySettings, inputs: MechanismInputs) -> Mechanism:
    block = inputs.block_tokens
    frame_rows = block + settings.count + (block if settings.min_real_rows else 0)
    if settings.pool_size < frame_rows:
        raise SettingsError(
            f"frame.decoys.pool_size is {settings.pool_size} and one frame may need {frame_rows} rows",
            remedy=f"use {frame_rows} or more, better the rows of many frames, such as 8192",
        )
    if settings.min_real_rows >= block:
        raise SettingsError(
            f"frame.decoys.min_real_rows is {settings.min_real_rows} and a block has {block} rows",
            remedy="use fewer, or 0 to send all rows always",
        )
    if inputs.decoy_loss == "replay":
        _check_replayed_rows(settings, block)
        return ReplayedRows(settings, block, inputs.keys)
    return DecoyRows(settings, block, inputs.keys)


def _check_replayed_rows(settings: DecoySettings, block: int) -> None:
    if settings.count % block:
        near = max(block, settings.count // block * block)
        raise SettingsError(
            f"frame.decoys.count is {settings.count} and gradient.policy 'replay' fills frames with blocks of {block}",
            remedy=f"use a multiple of {block} (corpus.block_tokens), such as {near}",
        )
    if settings.min_real_rows:
        raise SettingsError(
            "frame.decoys.min_real_rows is set and gradient.policy 'replay' sends whole blocks",
            remedy="remove it, or choose another gradient policy",
        )


SPEC = MechanismSpec(
    name=DecoyRows.name,
    build=_build,
    check=_check,
    needs=("clip_noise",),
    needs_on={"gram": ("permutation",)},
)
