"""Adversaries in training: what reads the released rows here, so that the private encoder learns to tell it less.

They live on the trusted node, see private labels, and never cross; nothing of them is in a frame, a header or a bundle.
Their time is reported apart from the step's. They are training pressure and prove nothing: an attacker's probe is
another network, and the audit measures it.
"""

from __future__ import annotations

from tln.adversaries.panel import Adversaries, Pressure
from tln.adversaries.settings import (
    HEADS,
    UNFELT_WARNING,
    AdversarySettings,
    check_adversaries,
    describe_adversaries,
)

__all__ = [
    "HEADS",
    "UNFELT_WARNING",
    "Adversaries",
    "AdversarySettings",
    "Pressure",
    "check_adversaries",
    "describe_adversaries",
]
