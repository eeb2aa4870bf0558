"""Attacks that rebuild texts from what crossed, one file each: prompts and answers, from any hop."""

from __future__ import annotations

from auditor.attacks.base import Attack

INVERSIONS: tuple[Attack, ...] = ()

__all__ = ["INVERSIONS"]
