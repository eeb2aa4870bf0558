"""NaMoE, SIP for noisy wires: one expert a strength of noise and a gate that tells which to trust.

Shapes: T positions of one text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.parts.each_text import read_each
from auditor.attacks.inversion.parts.inverter import InverterTraining
from auditor.attacks.inversion.parts.public_head import public_head
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress
from auditor.views.prompt import PromptView


@dataclass(frozen=True)
class NoiseAwareMixture(InverterTraining):
    """Experts stand at equal distances from no noise to the largest."""

    num_experts: Count = 4
    largest_noise_ratio: NonNegativeFloat = 1.0
    """Noise of the last expert, as a share of the spread of every channel on public text."""

    name: ClassVar[str] = "namoe"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model; public text"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "NaMoE (Chen et al., BiSR: data reconstruction attacks in split learning of LLMs, 2024)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """Tokens of every position that crossed, with the mixture's probability; none for the one that follows."""
        head = public_head(view.model, settings.device)
        noises = tuple(torch.linspace(0, self.largest_noise_ratio, self.num_experts).tolist())
        inverter = self.fit(view, head, self.name, progress, noises)
        return read_each(self.name, view, progress, inverter.invert, fit_seconds=inverter.fit_seconds)
