"""The rows that an attack is given, made in process: what crosses is a function of tokens and weights alone.

A bundle of the same cut holds the same rows; that it does is tested where bundles are made. Here no bundle is written,
so that depth, defence and target can change from cell to cell in seconds.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from auditor.arrays import Integers
from auditor.attacks.base import Attack
from auditor.channels import RESPONSE_SIDE
from auditor.public_model import PublicModel
from auditor.public_text import PublicText, overlapping
from auditor.views.prompt import CapturedText, KnownPlaintext, PromptView
from deploy.study.defences import Defence
from deploy.study.prompts import Prompts
from deploy.study.settings import Cell, Recipe
from splitwire.backbone import HeadModel
from splitwire.errors import SettingsError


@dataclass(frozen=True, eq=False)
class Victims:
    """Texts with their tokens [T + 1], those to score, and what is known of the target beside them."""

    texts: tuple[CapturedText, ...]
    tokens: tuple[Integers, ...]
    scored: tuple[Integers, ...]
    """The tokens, with -1 for those of a chat template."""
    known: tuple[KnownPlaintext, ...]

    def view(self, attack: Attack, model: PublicModel, public: PublicText, seed: int) -> PromptView:
        """What this attack is granted. SettingsError when the public text has a victim's in it."""
        if attack.assumes.auxiliary_text and overlapping(public.auxiliary, [tokens[:-1] for tokens in self.tokens]):
            raise SettingsError(f"{public.name} overlaps the prompts", remedy="name other prompts with --prompts")
        return PromptView(
            family=attack.families[0],
            texts=self.texts,
            model=model,
            auxiliary=public.auxiliary if attack.assumes.auxiliary_text else (),
            wire_dtype="fp32",
            seed=seed,
            known=self.known if attack.assumes.known_plaintext else (),
        )

    def truths(self, attack: Attack, *, answers: bool) -> list[Integers]:
        """Tokens [T + 1] to score, -1 where the wire that the attack reads does not tell.

        With answers all attacks are scored on the same places: neither the first token, which no returned row names,
        nor the last, which no forward row does.
        """
        hidden = [0, -1] if answers else [0] if attack.families[0] == RESPONSE_SIDE else [-1]
        truths = [tokens.copy() for tokens in self.scored]
        for tokens in truths:
            tokens[hidden] = -1
        return truths


@torch.no_grad()
def make_victims(
    cell: Cell, recipe: Recipe, prompts: Prompts, model: PublicModel, head: HeadModel, public: PublicText
) -> Victims:
    """Rows of the first prompts by this head, behind the cell's defence."""
    defence = Defence.parse(cell.defence)
    texts, tokens, scored = [], [], []
    for number, prompt in enumerate(prompts.tokens[: cell.num_prompts]):
        asked = np.concatenate([prompt, prompts.handover]) if cell.answers else prompt
        whole = answered(model, head, asked, recipe.answer_tokens) if cell.answers else np.append(prompt, -1)
        rows_TH = head(torch.from_numpy(whole[:-1])[None])[0].float()
        returned_TH = model.middle(rows_TH[None])[0].float() if cell.answers else None
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)
        crossed_TH = defence.apply(rows_TH, generator)
        texts.append(CapturedText(crossed_TH, returned_TH, None, None, len(asked)))
        tokens.append(whole)
        scored.append(whole.copy())
        scored[-1][len(prompt) : len(asked)] = -1
    known = [piece[: recipe.known_tokens] for piece in public.auxiliary[: recipe.known_texts]]
    return Victims(
        tuple(texts),
        tuple(tokens),
        tuple(scored),
        tuple(KnownPlaintext(piece, head(torch.from_numpy(piece)[None])[0].float()) for piece in known)
        if cell.target == "tuned"
        else (),
    )


@torch.no_grad()
def answered(model: PublicModel, head: HeadModel, asked: Integers, num_tokens: int) -> Integers:
    """What was asked [T] with a greedy answer of at most so many tokens, ended by the model's end token."""
    ends = model.tail.config.eos_token_id
    last = set(ends if isinstance(ends, list) else [ends])
    tokens_1T = torch.from_numpy(asked)[None]
    for _ in range(num_tokens):
        normed_1TH = model.tail(model.middle(head(tokens_1T)))
        following = int(model.tail.logits(normed_1TH[0, -1]).argmax())
        tokens_1T = torch.cat([tokens_1T, torch.tensor([[following]])], dim=1)
        if following in last:
            break
    return tokens_1T[0].numpy()


def tuned_head(model: PublicModel, texts: Sequence[Integers], recipe: Recipe) -> HeadModel:
    """A copy of the public head, trained further on these texts [T] to foretell the next token, one text a step."""
    middle, tail = model.middle.requires_grad_(False), model.tail.requires_grad_(False)
    head = copy.deepcopy(model.head).float().requires_grad_(True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.tuned_learning_rate)
    for step in range(recipe.tuned_steps):
        tokens_1T = torch.from_numpy(texts[step % len(texts)])[None]
        logits_TV = tail.logits(tail(middle(head(tokens_1T[:, :-1]))))[0]
        loss = torch.nn.functional.cross_entropy(logits_TV, tokens_1T[0, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return head.eval().requires_grad_(False)
