"""Names tokens by what forward rows and gradient rows of one frame have in common.

Both hops of a frame are turned by the same rotation and arranged by the same permutation, so the cross-Gram X G' of its
forward rows X and gradient rows G is free of the rotation; a secret scale of a row is undone in its gradient, so that
the product of both lengths is free of the scale. Three kinds of arm, each over features of a row:

    cosine          a row's cosines with all gradient rows, its gradient's with all forward rows, and their own
    raw             the same with inner products
    norm_product    log of the product of both lengths: as it is, and against the frame's mean

Shapes: M rows, D width.
"""

from __future__ import annotations

import hashlib
import itertools

import torch

from auditor.attacks.base import Assumes, Question
from auditor.attacks.gram_pattern import FORMS, pair_features
from auditor.attacks.parts.feature_arm import FeatureArm
from auditor.attacks.parts.probe_data import token_classes
from auditor.channels import JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress
from auditor.views.token import TokenView

_SMALLEST = 1e-12


class CrossGram:
    """Arms over the cross-Gram in cosine and raw form, and over norm products."""

    name = "cross_gram"
    question: Question = "cross_token"
    families: tuple[str, ...] = (JOINT,)
    knowledge = "captured rows of both hops; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "cross-Gram X G' (Privacy Failure in Split-LLM Training), by cosine and with scale; product of norms"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[FeatureArm]:
        """One arm for every kind of feature, not yet fitted."""
        del progress
        rows_MW, offsets = torch.from_numpy(view.rows), [int(offset) for offset in view.offsets]
        features = {form: pair_features(rows_MW, offsets, form, JOINT) for form in FORMS}
        features["norm_product"] = _norm_products(rows_MW, offsets)
        classes = token_classes(view.train_tokens, settings.max_classes)
        return [
            FeatureArm(name, values, view, classes, settings, _seed(view, name)) for name, values in features.items()
        ]


def _norm_products(rows_MW: torch.Tensor, offsets: list[int]) -> torch.Tensor:
    """Log of forward norm times gradient norm and its difference from the frame's mean, with squares [M, 4]."""
    forward_MD, gradient_MD = rows_MW.chunk(2, dim=1)
    product_M = (forward_MD.norm(dim=1) * gradient_MD.norm(dim=1)).clamp_min(_SMALLEST).log()
    relative_M = product_M.clone()
    for start, end in itertools.pairwise(offsets):
        relative_M[start:end] -= product_M[start:end].mean()
    centred_M = product_M - product_M.mean()
    return torch.stack([centred_M, centred_M**2, relative_M, relative_M**2], dim=1)


def _seed(view: TokenView, name: str) -> int:
    text = f"{view.seed}|{view.family}|{view.partition}|cross_gram|{name}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
