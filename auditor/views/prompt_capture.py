"""Makes the view of captured texts, and for the scorer its answers.

    texts     one a document first, then more of them, as many as the plan allows; the rows of other documents are not
              given, unless the attack is granted known plaintext: then the texts of train documents come with tokens
    model     the public model whose fingerprint crossed
    auxiliary public text, for attacks that learn from it

Not measurable, with the reason: no truth, or truth of other bytes; no public model of that fingerprint; tokens that the
model does not have; rows of another width; public text that is also the victim's; too few documents to grant any. Does
not apply: a bundle of training for a question about prompts, the other way round, and the gram stack.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from auditor.channels import GRADIENT_ONLY, JOINT, RESPONSE_SIDE
from auditor.evidence.material import Material
from auditor.plan import Plan
from auditor.public_model import PublicModel, find_public_model
from auditor.public_text import OVERLAP_TOKENS, PublicText, load_public_text, overlapping
from auditor.views.base import DoesNotApplyError, NotMeasurableError
from auditor.views.prompt import CapturedText, KnownPlaintext, PromptView
from auditor.views.prompt_choice import (
    chosen_texts,
    count_untold,
    cut,
    evenly,
    first_tokens,
    granted,
    named,
    within_window,
)
from auditor.views.sequences import FoundTexts, find_texts
from auditor.views.text_keys import KeyedText, TextKey, keyed_texts
from auditor.views.text_rows import TextRows, text_rows
from splitwire.backbone import load_tokenizer
from splitwire.errors import SettingsError

_MOST_KNOWN = 400
"""Texts of known plaintext that an attack is given, evenly chosen."""


@dataclass(frozen=True)
class Grants:
    """What an attack is given beside rows and the public model."""

    training: bool = False
    """Sequences of TRAIN frames with their gradients, in place of generated texts."""
    auxiliary_text: bool = False
    known_plaintext: bool = False


@dataclass(frozen=True, eq=False)
class PromptKey:
    """Answers of the view's texts, in order, and what a reader has to know of their choice. For the scorer alone."""

    texts: tuple[TextKey, ...]
    public: PublicText
    """Public text: controls are made of what no attack is given."""
    num_available: int
    problems: tuple[str, ...]


def prompt_view(material: Material, family: str, plan: Plan, grants: Grants) -> tuple[PromptView, PromptKey]:
    """The view and its answers."""
    found = find_texts(material.sources, training=grants.training)
    _refuse_other_kind(found, training=grants.training)
    model, why_not = find_public_model(material, plan.response)
    if model is None:
        raise NotMeasurableError(why_not)
    problems = Counter(found.left_out)
    keyed = named(keyed_texts(material.sources, material.truths, found.texts, problems))
    count_untold(keyed, problems)
    keyed = within_window(keyed, model, problems)
    if not keyed:
        raise NotMeasurableError(_why_none(material, problems))
    _check_tokens(keyed, model, material)
    known: list[KeyedText] = []
    if grants.known_plaintext:
        known, keyed = granted(keyed, plan)
    chosen = cut(chosen_texts(keyed, plan.inversion.max_texts), plan.inversion.max_positions)
    public = load_public_text(plan.inversion, load_tokenizer(model.settings))
    if grants.auxiliary_text:
        _refuse_overlap(public, keyed, plan)
    texts, keys, dropped = _with_rows(material, chosen, family, training=grants.training)
    problems.update(dropped)
    view = PromptView(
        family=family,
        texts=tuple(texts),
        model=model,
        auxiliary=public.auxiliary if grants.auxiliary_text else (),
        wire_dtype=chosen[0].pieces.wire_dtype,
        seed=plan.split.seed,
        known=_known(material, known, training=grants.training),
    )
    _check_width(view)
    problem_lines = tuple(f"{count} {what}" for what, count in sorted(problems.items()))
    return view, PromptKey(tuple(keys), public, len(keyed), problem_lines)


def _refuse_other_kind(found: FoundTexts, *, training: bool) -> None:
    if training and not found.num_train:
        raise DoesNotApplyError("nothing was trained: the bundle holds no TRAIN frame, so no gradient crossed")
    if training and found.num_gram == found.num_train:
        raise DoesNotApplyError("rows of the gram stack are no positions of a text that the public model computes")
    if not training and not found.num_cached:
        what = "a bundle of training" if found.num_train else "a bundle without generation"
        raise DoesNotApplyError(f"{what}: prompts cross in CACHED frames, and there is none")


def _why_none(material: Material, problems: Counter[str]) -> str:
    if not material.truths:
        return "no truth is given that tells what the texts were: give truth.sealed with --truth"
    told = "; ".join(f"{count} {what}" for what, count in sorted(problems.items()))
    return told or "no text of a real document crossed"


def _check_tokens(texts: Sequence[KeyedText], model: PublicModel, material: Material) -> None:
    """The vocabulary of the truth has to be the model's: other tokens would be scored as if they were the same."""
    size = int(model.head.embedding.num_embeddings)
    told = {
        int(facts["vocabulary_size"])
        for t in material.truths
        if (facts := getattr(t, "facts", {})).get("vocabulary_size")
    }
    largest = max(int(text.key.tokens.max()) for text in texts)
    if any(number != size for number in told) or largest >= size:
        other = next((number for number in told if number != size), largest + 1)
        raise NotMeasurableError(
            f"the truth is in tokens of another vocabulary, of {other}; that of the public model has {size}"
        )


def _refuse_overlap(public: PublicText, victims: Sequence[KeyedText], plan: Plan) -> None:
    """An attack that learned from the victim's own text would be scored on what it was taught."""
    found = overlapping(public.runs, [text.key.tokens[:-1] for text in victims])
    if not found:
        return
    told = f"{public.name} has {OVERLAP_TOKENS} tokens in a row in common with {found} of the captured texts"
    remedy = "name other public text in inversion.auxiliary"
    if plan.inversion.auxiliary:
        raise SettingsError(f"inversion.auxiliary: {told}", remedy=remedy)
    raise NotMeasurableError(f"{told}: {remedy}")


def _with_rows(
    material: Material, chosen: Sequence[KeyedText], family: str, *, training: bool
) -> tuple[list[CapturedText], list[TextKey], Counter[str]]:
    texts, keys, dropped = [], [], Counter[str]()
    rows = text_rows(material.sources, [text.pieces for text in chosen], training=training)
    for text, captured in zip(chosen, rows, strict=True):
        if captured is None:
            dropped["texts whose FORWARD frames are not whole"] += 1
            continue
        if _misses_hop(captured, family):
            dropped[f"texts whose {_hop(family)} frames are not whole"] += 1
            continue
        num = len(captured.forward)
        keys.append(first_tokens(text.key, num + 1))
        texts.append(_captured(text, captured))
    if not texts:
        raise NotMeasurableError(f"no text can be attacked: {'; '.join(dropped)}")
    return texts, keys, dropped


def _hop(family: str) -> str:
    return {RESPONSE_SIDE: "RETURN", GRADIENT_ONLY: "BACKWARD", JOINT: "BACKWARD"}.get(family, "FORWARD")


def _misses_hop(rows: TextRows, family: str) -> bool:
    """Whether the hop that the family is about carried nothing whole of this text."""
    return {"RETURN": rows.returned, "BACKWARD": rows.gradient}.get(_hop(family), rows.forward) is None


def _captured(text: KeyedText, rows: TextRows) -> CapturedText:
    num_prompt = min(text.pieces.num_prompt, len(rows.forward))
    return CapturedText(rows.forward, rows.returned, rows.gradient, rows.input_gradient, num_prompt)


def _known(material: Material, texts: Sequence[KeyedText], *, training: bool) -> tuple[KnownPlaintext, ...]:
    chosen = evenly(texts, _MOST_KNOWN)
    rows = text_rows(material.sources, [text.pieces for text in chosen], training=training)
    return tuple(
        KnownPlaintext(text.key.tokens[: len(captured.forward)], captured.forward)
        for text, captured in zip(chosen, rows, strict=True)
        if captured is not None
    )


def _check_width(view: PromptView) -> None:
    widths = {text.forward.shape[1] for text in view.texts}
    if widths != {view.model.head.hidden_width}:
        told = ", ".join(map(str, sorted(widths)))
        raise NotMeasurableError(f"rows are {told} wide, those of the public model {view.model.head.hidden_width}")
