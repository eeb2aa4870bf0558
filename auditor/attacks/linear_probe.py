"""A linear reading of a row and its invariants: the linear discriminant of the tokens, in closed form.

It costs a thousandth of a trained probe, so it is the arm of sweeps, and it reads what a linear map can read. Two arms:

    prior    tokens are as frequent as in the train part: what names most tokens rightly
    equal    every token is as likely as any other: what names rare tokens
"""

from __future__ import annotations

from auditor.attacks.base import Assumes, Question
from auditor.attacks.parts.gaussian_classes import ClassArm
from auditor.attacks.parts.probe_data import ProbeData, token_classes
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress
from auditor.views.token import TokenView

PRIORS = {"prior": 1.0, "equal": 0.0}


class LinearProbe:
    """Linear discriminant over rows and invariants."""

    name = "linear_probe"
    question: Question = "token"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "linear probe of split-learning latents, as a linear discriminant with shrunken class means"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[ClassArm]:
        """Both arms, not yet fitted."""
        del progress
        data = ProbeData(view, token_classes(view.train_tokens, settings.max_classes))
        features = (data.rows, data.invariants)
        return [ClassArm(name, data, features, prior_ratio=prior, spherical=False) for name, prior in PRIORS.items()]
