"""Names the token whose mean row is nearest. Two sets of features, each with two arms:

rows          the coordinates: finds what points the same way in every frame
invariants    the 22 invariants: finds what no rotation hides

prior    distance in units of the spread within tokens, and how frequent the token is in the train part
equal    distance alone, the classic form
"""

from __future__ import annotations

from auditor.attacks.base import Assumes, Question
from auditor.attacks.linear_probe import PRIORS
from auditor.attacks.parts.gaussian_classes import ClassArm
from auditor.attacks.parts.probe_data import ProbeData, token_classes
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress
from auditor.views.token import TokenView


class NearestCentroid:
    """Nearest class mean, over coordinates and over invariants."""

    name = "nearest_centroid"
    question: Question = "token"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "nearest-centroid probe, with shrunken class means (Tibshirani et al. 2002)"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[ClassArm]:
        """Four arms, not yet fitted."""
        del progress
        data = ProbeData(view, token_classes(view.train_tokens, settings.max_classes))
        return [
            ClassArm(f"{name}/{prior_name}", data, (features,), prior_ratio=prior, spherical=True)
            for name, features in (("rows", data.rows), ("invariants", data.invariants))
            for prior_name, prior in PRIORS.items()
        ]
