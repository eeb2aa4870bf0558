"""The ledger charges every released row to its document, and claims nothing that its sum does not mean."""

from __future__ import annotations

import math

import pytest
import torch

from tln.context import ComputeMode, RowTruth, StepContext
from tln.training.ledger import NO_CLAIM, Ledger, RowPrices, epsilon, reasons_against, row_rho

DEFENCE = {
    "frame": {"clip": {"clip_norm": 1.0}, "noise": {"sigma": 0.35}},
    "gradient": {"policy": "clip_noise", "clip_norm": 0.01, "sigma": 0.0035},
}


def truth(documents: list[list[int]], real: list[list[bool]]) -> RowTruth:
    numbers = torch.tensor(documents)
    return RowTruth(torch.tensor(real), numbers, numbers, numbers, numbers)


def charge(ledger: Ledger, documents: list[int], real: list[bool], mode: ComputeMode = "train") -> None:
    ledger(StepContext(1, mode=mode), truth([documents], [real]), [])


def test_one_row_costs_what_the_published_noise_gives() -> None:
    """Sigma .35 C: rho 4.1 under add/remove, 16.3 under replacement."""
    assert row_rho(1.0, 0.35) == pytest.approx(4.0816, abs=1e-4)
    assert 4 * row_rho(1.0, 0.35) == pytest.approx(16.327, abs=1e-3)
    assert row_rho(0.01, 0.0035) == pytest.approx(row_rho(1.0, 0.35))


def test_rows_without_clip_or_noise_have_no_finite_price() -> None:
    assert row_rho(None, 0.35) == math.inf
    assert row_rho(1.0, None) == math.inf
    assert RowPrices.of({"frame": {}, "gradient": {"policy": "open"}}) == RowPrices(math.inf, math.inf)


def test_decoys_and_gradient_rows_are_charged_to_their_documents() -> None:
    ledger = Ledger(3, RowPrices(1.0, 10.0), [])
    charge(ledger, [0, 0, 1, 2], [True, True, False, False])
    charge(ledger, [0, 1, 1, -1], [True, False, False, True], mode="evaluate")
    summary = ledger.summary()
    assert summary["most_real_rows_of_a_document"] == 3
    assert summary["most_decoy_rows_of_a_document"] == 3
    assert summary["most_gradient_rows_of_a_document"] == 2
    assert summary["num_charged_documents"] == 3
    assert summary["largest_rho_add_remove"] == pytest.approx(3 * 1.0 + 2 * 10.0)
    assert summary["largest_rho_replace"] == pytest.approx(4 * 23.0)


def test_a_sum_that_means_nothing_is_no_claim() -> None:
    ledger = Ledger(1, RowPrices.of(DEFENCE), [])
    charge(ledger, [0] * 32, [True] * 32)
    summary = ledger.summary()
    assert summary["claim"] == NO_CLAIM
    assert summary["epsilon"] is None
    assert "epsilon" in summary["reasons"][0]


def test_an_open_gradient_is_named_and_keeps_the_report_finite() -> None:
    ledger = Ledger(1, RowPrices.of(DEFENCE | {"gradient": {"policy": "open"}}), [])
    charge(ledger, [0], [True])
    summary = ledger.summary()
    assert summary["largest_rho_add_remove"] is None
    assert summary["reasons"] == ["rows crossed that were not both clipped and noised"]


def test_a_price_that_is_not_finite_counts_only_where_it_was_paid() -> None:
    ledger = Ledger(1, RowPrices(0.001, math.inf), [])
    charge(ledger, [0], [True], mode="evaluate")
    summary = ledger.summary()
    assert summary["reasons"] == []
    assert summary["epsilon"] == pytest.approx(epsilon(0.001))
    assert "DP a document" in summary["claim"]


def test_a_frame_of_unknown_rows_is_a_reason() -> None:
    ledger = Ledger(1, RowPrices(0.001, 0.001), [])
    ledger(StepContext(1, mode="train"), None, [])
    assert ledger.summary()["claim"] == NO_CLAIM


@pytest.mark.parametrize(
    ("defence", "trains", "renoised", "expected"),
    [
        (DEFENCE, False, False, 0),
        (DEFENCE, True, False, 1),
        (DEFENCE, False, True, 1),
        (DEFENCE | {"gradient": {"policy": "matched"}}, False, False, 1),
        (DEFENCE | {"frame": {"mixup": {}}}, False, False, 1),
    ],
)
def test_every_reason_against_a_claim_is_named(
    defence: dict[str, dict[str, object]], trains: bool, renoised: bool, expected: int
) -> None:
    reasons = reasons_against(defence, trains_on_private_text=trains, has_fresh_noise=renoised)
    assert len(reasons) == expected
