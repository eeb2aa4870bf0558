"""The plan of an audit: which attacks run on which families, how data is split, what is spent, what the ceilings are.

A plan is a TOML file (`auditor plan init` writes one), or the name of a built-in plan: `default`, or `quick` for
demonstrations. `quick` is marked under-powered: it can find a leak, and it can never give a pass. The hash of the
effective plan is in every result. auditor/plan/files.py reads, checks and writes plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from auditor.channels import (
    ACCUMULATED_HISTORY,
    ACTIVE_PERTURBATION,
    FAMILIES,
    FORWARD_ONLY,
    GRADIENT_ONLY,
    JOINT,
    MEMBERSHIP_PROPERTY,
    RESPONSE_SIDE,
    STATEFUL_REMOTE_STATE,
    TIMING_METADATA,
)
from auditor.plan.sections import (
    CalibrationSettings,
    Ceilings,
    DeepProbeSettings,
    HistorySettings,
    InversionSettings,
    ProbeSettings,
    ResponseSettings,
    SplitSettings,
    StatisticsSettings,
    SweepSettings,
)
from splitwire.settings import settings_hash


@dataclass(frozen=True)
class Plan:
    """Everything that an audit decides beforehand."""

    name: str = "default"
    """Name of the plan, in every result."""
    underpowered: bool = False
    """Never pass: for plans that spend too little to be believed."""
    attacks: tuple[str, ...] = (
        "gradient_support",
        "row_norm",
        "norm_product",
        "sign_pattern",
        "gram_pattern",
        "linkage",
        "repeats",
        "latent_probe",
        "linear_probe",
        "nearest_centroid",
        "latent_matching",
        "cross_gram",
        "compromise_sweep",
        "model_completion",
        "traffic_profile",
        "perturbation_response",
        "trajectory",
        "membership",
        "frame_matching",
        "nearest_vocabulary",
        "exact_inverter",
        "mc",
    )
    """Attacks that run."""
    families: tuple[str, ...] = (
        FORWARD_ONLY,
        GRADIENT_ONLY,
        JOINT,
        ACCUMULATED_HISTORY,
        RESPONSE_SIDE,
        TIMING_METADATA,
        ACTIVE_PERTURBATION,
        STATEFUL_REMOTE_STATE,
        MEMBERSHIP_PROPERTY,
    )
    """Families on which those attacks run."""
    scope: tuple[str, ...] = tuple(FAMILIES)
    """Families that the verdict speaks of. One that was not measured makes it inconclusive."""
    partition: Literal["auto", "all", "support", "oracle"] = "auto"
    """Rows that the probes read: all, those with a non-zero gradient, the real ones (attacker is told), or `auto`:
    support where the gradient separates rows, else all."""
    target: Literal["label", "token"] = "label"
    """What the probes predict of a row: the next token, or the token itself."""
    compute_modes: tuple[Literal["train", "evaluate", "cached"], ...] = ("train", "evaluate")
    """Which forward frames are attacked. Inversion attacks read generation or training, as they are made for, whatever
    this says."""
    split: SplitSettings = field(default_factory=SplitSettings)
    statistics: StatisticsSettings = field(default_factory=StatisticsSettings)
    ceilings: Ceilings = field(default_factory=Ceilings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    deep_probe: DeepProbeSettings = field(default_factory=DeepProbeSettings)
    sweeps: SweepSettings = field(default_factory=SweepSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    response: ResponseSettings = field(default_factory=ResponseSettings)
    inversion: InversionSettings = field(default_factory=InversionSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)

    @property
    def hash(self) -> str:
        """SHA-256 hex over the canonical form."""
        return settings_hash(self)


QUICK = Plan(
    name="quick",
    underpowered=True,
    attacks=("gradient_support", "row_norm", "linkage", "latent_probe"),
    families=(FORWARD_ONLY, GRADIENT_ONLY, JOINT, ACCUMULATED_HISTORY),
    statistics=StatisticsSettings(repetitions=1000),
    probe=ProbeSettings(
        probes=("coordinate_plus_invariants",),
        restarts=1,
        epochs=6,
        max_classes=512,
        max_frames=1000,
        control_coverage_ratio=0.5,
    ),
)
BUILT_IN = {"default": Plan(), "quick": QUICK}


def scope_line(plan: Plan) -> str:
    """What a verdict under this plan speaks of."""
    families = ", ".join(FAMILIES[name].title for name in plan.scope)
    leaks = " and ".join(plan.calibration.modes)
    return f"{families}; {' and '.join(plan.compute_modes)} frames; leaks of the {leaks} mode"
