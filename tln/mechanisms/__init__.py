"""The mechanisms of the private frame, one a file, and the registry that finds them by their settings name.

A new mechanism is a file with a SPEC and a line in `MECHANISMS`; a settings section of its own is a field of
FrameSettings with the mechanism's name.
"""

from __future__ import annotations

from tln.mechanisms import bottleneck, clip_noise, decoy_spec, fixed_grid, mixup, permutation, rotation, scale_sign
from tln.mechanisms.base import Mechanism, MechanismInputs, MechanismSpec, StackName, Stage

MECHANISMS: dict[str, MechanismSpec] = {
    module.SPEC.name: module.SPEC
    for module in (bottleneck, clip_noise, mixup, decoy_spec, permutation, scale_sign, rotation, fixed_grid)
}

__all__ = ["MECHANISMS", "Mechanism", "MechanismInputs", "MechanismSpec", "StackName", "Stage"]
