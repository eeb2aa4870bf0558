"""What forward-wire inversions are made of does what it says, on every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from auditor.attacks.inversion.parts.accepted import AcceptedTokens, NextToken
from auditor.attacks.inversion.parts.contexts import synthetic_rows
from auditor.attacks.inversion.parts.descent import descend
from auditor.attacks.inversion.parts.distribution import distribution_penalty
from auditor.attacks.inversion.parts.match_rows import Matching, match_rows
from auditor.attacks.inversion.parts.matching import Target, target_of
from auditor.attacks.inversion.parts.nearest import nearest_tokens
from auditor.attacks.inversion.parts.public_head import PublicHead, public_head
from auditor.attacks.inversion.parts.public_rows import rows_of_pieces, standard_of
from auditor.public_model import PublicModel
from splitwire.backbone import ModelSettings, load_whole

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2")
TOKENS = torch.tensor([11, 200, 7, 7, 90, 31, 4, 255, 60, 61, 62, 1])


def _ignore(share: float) -> None:
    del share


@pytest.fixture(scope="module")
def settings(tiny_model: Callable[[str], Path]) -> ModelSettings:
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


@pytest.fixture(scope="module")
def model(settings: ModelSettings) -> PublicModel:
    return PublicModel(settings)


@pytest.fixture(scope="module")
def head(model: PublicModel) -> PublicHead:
    return public_head(model, "cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_of_tokens_make_the_rows_of_tokens(family: str, tiny_model: Callable[[str], Path]) -> None:
    public = public_head(PublicModel(ModelSettings(source=str(tiny_model(family)), first_layer=3, last_layer=4)), "cpu")
    embeddings_TH = public.table[TOKENS].clone().requires_grad_()
    rows_TH = public.rows(embeddings_TH[None])[0]
    torch.testing.assert_close(rows_TH, public.rows_of_tokens(TOKENS[None])[0], atol=1e-4, rtol=1e-4)
    rows_TH[3].sum().backward()
    assert embeddings_TH.grad is not None
    assert embeddings_TH.grad[3].abs().sum() > 0
    assert embeddings_TH.grad[4:].abs().sum() == 0
    assert all(not parameter.requires_grad for parameter in public.head.parameters())


def test_entries_that_a_defence_zeroed_do_not_count() -> None:
    rows_TH = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    sparse_TH = rows_TH * (rows_TH.abs() > 0.5)
    target = target_of(sparse_TH, "fp32", torch.device("cpu"))
    for kind in ("cosine", "mse"):
        assert target.distance(rows_TH[None], kind).abs().max() < 1e-6
        assert target.distance(rows_TH.flip(0)[None], kind).min() > 1e-3


def test_zeros_of_an_int8_wire_count() -> None:
    rows_TH = torch.tensor([[1.0, 0.0]])
    target = target_of(rows_TH, "int8", torch.device("cpu"))
    assert float(target.distance(torch.tensor([[[1.0, 1.0]]]), "mse")) == 0.5
    assert float(target.distance(torch.tensor([[[1.0, 1.0]]]), "cosine")) == pytest.approx(1 - 0.5**0.5)


def test_a_row_that_is_all_zero_tells_nothing_and_breaks_nothing() -> None:
    target = Target(torch.zeros(1, 4), torch.zeros(1, 4))
    guess = torch.ones(1, 1, 4, requires_grad=True)
    for kind in ("cosine", "mse"):
        (gradient,) = torch.autograd.grad(target.distance(guess, kind).sum(), guess)
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_nearest_tokens_are_those_of_a_plain_search() -> None:
    generator = torch.Generator().manual_seed(2)
    table_VH, guess_TH = torch.randn(50, 6, generator=generator), torch.randn(9, 6, generator=generator)
    plain = torch.cdist(guess_TH, table_VH).argsort(dim=1)[:, :3]
    assert torch.equal(nearest_tokens(guess_TH, table_VH, "euclidean", 3), plain)
    cosine = functional.cosine_similarity(guess_TH[:, None], table_VH[None], dim=-1).argmax(1)
    assert torch.equal(nearest_tokens(guess_TH, table_VH, "cosine", 1)[:, 0], cosine)


def test_descent_keeps_the_best_iterate_and_ends_when_nothing_improves() -> None:
    guess = torch.tensor([1.0], requires_grad=True)
    overshooting = torch.optim.SGD([guess], lr=3.0)
    found = descend(guess, overshooting, lambda: guess.square().sum(), 5, _ignore)
    assert (found.loss, found.num_steps, guess.item()) == (1.0, 5, 1.0)
    flat = torch.tensor([1.0], requires_grad=True)
    still = descend(flat, torch.optim.SGD([flat], lr=0.1), lambda: 0 * flat.sum() + 1, 500, _ignore, patience_steps=7)
    assert still.num_steps == 7


def test_only_the_guess_moves_when_positions_stand_before_it(head: PublicHead) -> None:
    target = target_of(head.rows_of_tokens(TOKENS[None])[0], "fp32", head.device)
    before_TH = head.table[TOKENS[:8]]
    patch_TH, found = match_rows(
        head,
        target.between(8, 12),
        head.table[TOKENS[8:]],
        Matching("mse", "adam", 1e-3, 3),
        _ignore,
        embed=lambda guess_TH: torch.cat([before_TH, guess_TH]),
    )
    assert found.loss < 1e-9  # the start was the answer, and it was matched against rows 8 to 12
    torch.testing.assert_close(patch_TH, head.table[TOKENS[8:]])


def test_distribution_penalty_prefers_vocabulary_rows_to_long_ones(head: PublicHead) -> None:
    penalty = distribution_penalty(head, 1.0, torch.Generator().manual_seed(4))
    assert penalty is not None
    tokens = torch.arange(200)
    assert penalty(head.table[tokens]) < 0.5 * penalty(3 * head.table[tokens])
    assert distribution_penalty(head, 0.0, torch.Generator()) is None


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_candidates_have_the_rows_of_the_whole_text(family: str, tiny_model: Callable[[str], Path]) -> None:
    settings = ModelSettings(source=str(tiny_model(family)), first_layer=3, last_layer=4)
    model = PublicModel(settings)
    accepted, language = AcceptedTokens(model.head), NextToken(model, torch.device("cpu"))
    with torch.no_grad():
        expected_TV = load_whole(settings)(TOKENS[None]).logits[0]
    for position, token in enumerate(TOKENS):
        candidates = torch.tensor([5, int(token), 77])
        whole = torch.cat([TOKENS[:position].expand(3, -1), candidates[:, None]], dim=1)
        with torch.no_grad():
            torch.testing.assert_close(accepted.rows(candidates), model.head(whole)[:, -1], atol=1e-4, rtol=1e-4)
        scores_V = language.scores(accepted.accept(int(token)))
        torch.testing.assert_close(scores_V, expected_TV[position], atol=1e-3, rtol=1e-3)


class _Echo(PublicHead):
    """A head whose row is the token itself, with the one before it beside."""

    def rows_of_tokens(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        return torch.stack([tokens_BT, tokens_BT.roll(1, dims=1)], dim=-1).float()


def test_synthetic_contexts_show_each_token_once_within_public_text(head: PublicHead) -> None:
    pieces_NT = torch.randint(0, 100, (4, 12), generator=torch.Generator().manual_seed(6))
    tokens = torch.arange(100, 150)
    echo = _Echo(head.head, head.table, head.scale)
    found = list(synthetic_rows(echo, pieces_NT, tokens, 0.25, torch.Generator().manual_seed(7)))
    named, rows_NH = torch.cat([chunk for _, chunk in found]), torch.cat([rows for rows, _ in found])
    assert torch.equal(named.sort().values, tokens)
    assert torch.equal(rows_NH[:, 0], named.float())
    assert 0.6 < (rows_NH[:, 1] < 100).float().mean() < 1  # three of four places are still public text


def test_standardised_public_rows_have_mean_0_and_spread_1(head: PublicHead) -> None:
    rows_NTH = rows_of_pieces(head, torch.randint(0, 256, (40, 12), generator=torch.Generator().manual_seed(8)))
    standard = standard_of(rows_NTH)(rows_NTH).flatten(0, 1)
    torch.testing.assert_close(standard.mean(0), torch.zeros(48), atol=1e-4, rtol=0)
    torch.testing.assert_close(standard.std(0), torch.ones(48), atol=1e-3, rtol=0)
