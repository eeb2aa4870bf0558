"""What a cheap probe reads when more, or less, is compromised than an audit assumes.

The probe is the linear discriminant of linear_probe.py with the frequencies of the tokens: in closed form, so that it
can be fitted anew at every setting of a sweep. The scorer (auditor/scorers/sweep.py) decides what it is given.
"""

from __future__ import annotations

from auditor.attacks.base import Assumes, Question
from auditor.attacks.linear_probe import LinearProbe
from auditor.attacks.parts.gaussian_classes import ClassArm
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress
from auditor.views.token import TokenView


class CompromiseSweep:
    """Linear probe under several fractions of compromise."""

    name = "compromise_sweep"
    question: Question = "sweep"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "a share of the frames, of the decoys, of the gauges or of the train texts, as the sweep says"
    assumes = Assumes(known_plaintext=True)
    paper = "compromise-fraction sweep (Privacy Failure in Split-LLM Training)"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[ClassArm]:
        """One arm, not yet fitted."""
        return LinearProbe().run(view, settings, progress)[:1]
