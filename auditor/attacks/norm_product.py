"""Tells real rows from decoys by the length of a forward row times the length of its gradient.

A secret scale of a row is undone in its gradient, so each length alone is hidden behind it and their product is not.
The readings are those of row_norm.py.
"""

from __future__ import annotations

from auditor.attacks.row_norm import RowNorm
from auditor.channels import JOINT


class NormProduct(RowNorm):
    """Calibrated classifier of real units by the product of both norms."""

    name = "norm_product"
    families: tuple[str, ...] = (JOINT,)
    knowledge = "captured rows of both hops; which rows of the train documents are real"
    paper = "forward norm times gradient norm, which cancel the scale gauge"
