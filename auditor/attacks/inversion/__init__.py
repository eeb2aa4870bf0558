"""Attacks that rebuild texts from what crossed, one file each: prompts and answers, from any hop."""

from __future__ import annotations

from auditor.attacks.base import Attack
from auditor.attacks.inversion.nearest_vocabulary import NearestVocabulary

INVERSIONS: tuple[Attack, ...] = (NearestVocabulary(),)

__all__ = ["INVERSIONS"]
