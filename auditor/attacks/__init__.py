"""The attacks, found through one registry. An attack sees a view (auditor/views/) and nothing else.

An attack answers one question, and the question decides which view it is given and how it is scored:

    support     which units carry a gradient at all        (auditor/scorers/support.py)
    partition   a score a unit by its norm, higher for real ones    (auditor/scorers/partition.py)
    partition_rows   the same by its whole row             (auditor/scorers/partition_rows.py)
    linkage     a score a unit from all earlier frames      (auditor/scorers/linkage.py)
    token       arms that each name a token a row          (auditor/scorers/token.py)
    cross_token the same, from what both hops of a frame have in common (auditor/scorers/cross_token.py)
    sweep       the same, at several fractions of compromise; no check (auditor/scorers/sweep.py)
    history     the same, once repeats of a block are found  (auditor/scorers/history.py)
    response    the same, from returned rows                (auditor/scorers/response.py)
    trajectory  a score an interval between snapshots       (auditor/scorers/trajectory.py)
    membership  a score a candidate document                (auditor/scorers/membership.py)
    frame_membership   the same, from frames alone          (auditor/scorers/frame_membership.py)
    metadata    a score a step from sizes and times         (auditor/scorers/metadata.py)
    reaction    what a change of the returned rows brings about     (auditor/scorers/reaction.py)
    prompt      the tokens of prompts and answers           (auditor/scorers/prompt.py)
    training_text   the tokens of training sequences, gradients included    (auditor/scorers/prompt.py)
    model       which public model made forward rows; no check      (auditor/scorers/model.py)

Every file of this folder is one attack; what they are made of is in parts/. A new attack is one file and one row here;
or a class in another package that declares an entry point of the group `splitwire.attacks` (docs/writing-an-attack.md).
"""

from __future__ import annotations

from importlib.metadata import entry_points

from auditor.attacks.base import Attack
from auditor.attacks.compromise_sweep import CompromiseSweep
from auditor.attacks.cross_gram import CrossGram
from auditor.attacks.deep_probe import DeepProbe
from auditor.attacks.frame_matching import FrameMatching
from auditor.attacks.gradient_support import GradientSupport
from auditor.attacks.gram_pattern import GramPattern
from auditor.attacks.inversion import INVERSIONS
from auditor.attacks.inversion.model_identification import ModelIdentification
from auditor.attacks.latent_matching import LatentMatching
from auditor.attacks.latent_probe import LatentProbe
from auditor.attacks.linear_probe import LinearProbe
from auditor.attacks.linkage import Linkage
from auditor.attacks.membership import Membership
from auditor.attacks.model_completion import ModelCompletion
from auditor.attacks.nearest_centroid import NearestCentroid
from auditor.attacks.norm_product import NormProduct
from auditor.attacks.perturbation_response import PerturbationResponse
from auditor.attacks.repeats import RepeatProbe
from auditor.attacks.row_norm import RowNorm
from auditor.attacks.sign_pattern import SignPattern
from auditor.attacks.traffic_profile import TrafficProfile
from auditor.attacks.trajectory import TrajectoryProperty
from auditor.plan import Plan
from splitwire.errors import SettingsError

ENTRY_POINTS = "splitwire.attacks"
_BUILT_IN: tuple[Attack, ...] = (
    GradientSupport(),
    RowNorm(),
    NormProduct(),
    SignPattern(),
    GramPattern(),
    Linkage(),
    RepeatProbe(),
    LatentProbe(),
    LinearProbe(),
    NearestCentroid(),
    LatentMatching(),
    CrossGram(),
    DeepProbe(),
    CompromiseSweep(),
    ModelCompletion(),
    TrafficProfile(),
    PerturbationResponse(),
    TrajectoryProperty(),
    Membership(),
    FrameMatching(),
    *INVERSIONS,
    ModelIdentification(),
)
ATTACKS = {attack.name: attack for attack in _BUILT_IN}


def plan_pairs(plan: Plan) -> list[tuple[str, str]]:
    """Every attack of the plan with every family of the plan that it is for."""
    return [(name, family) for name in plan.attacks for family in plan.families if family in ATTACKS[name].families]


def register_installed(attacks: dict[str, Attack]) -> None:
    """Adds the attacks of other packages. SettingsError when two have one name: which of them ran would be unknown."""
    for point in entry_points(group=ENTRY_POINTS):
        if point.name in attacks:
            raise SettingsError(f"two attacks are called {point.name}", remedy="uninstall or rename the one you added")
        attacks[point.name] = point.load()()


register_installed(ATTACKS)

__all__ = ["ATTACKS", "Attack", "plan_pairs"]
