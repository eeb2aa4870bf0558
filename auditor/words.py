"""Numbers and findings as a reader sees them, for the verdict's reasons, the page and the terminal alike.

None is a dash, never a zero. Sentences name the number and the ceiling, and hold no text of a document.
"""

from __future__ import annotations

from collections.abc import Callable

from auditor.results import Check, Result, Unit

DASH = "-"
LEFT_OUT = "no attack of the plan does"
OUT_OF_SCOPE = "the plan leaves it out of its scope"
UNDERPOWERED = "under-powered"
UNCALIBRATED = "uncalibrated"
UNFOUND = f"{UNCALIBRATED}: no dose"
UNREAD = "were not attacked"
NO_CONTROL = "no representation-matched control"
SHORT_FAMILIES = {
    "forward_only": "forward",
    "gradient_only": "gradient",
    "joint_forward_gradient": "joint",
    "accumulated_history": "history",
    "stateful_remote_state": "state",
    "membership_property": "membership",
    "active_perturbation": "active",
    "timing_metadata": "timing",
    "response_side": "response",
}
MEANINGS = {
    "exact_support_frames": "frames whose zeros in the gradient are exactly the decoys",
    "partition_auc": "how well real rows are told from decoys: 0.5 is chance, 1 without error",
    "linkage_auc": "how well decoys are told by rows that crossed before",
    "real_rows_property_auc": "how well sizes and times tell which steps have many real rows",
    "document_length_property_auc": "how well sizes and times tell which steps have long documents",
    "token_rarity_property_auc": "how well sizes and times tell which steps have rare words",
    "rare_tokens_property_auc": "how well the node's own state tells which documents have many rare tokens",
    "length_property_auc": "how well the node's own state tells which documents are long",
    "membership_auc": "how well documents trained on are told from documents held out",
    "membership_tpr_at_1_percent_fpr": "share of the documents trained on that is found at 1 % false alarms",
    "reaction_partition_auc": "how well real rows are told from decoys by how they react to changed rows",
    "active_token_top1_effect": "tokens named by changing what is returned, less those named by watching",
    "text_token_effect": "tokens of a text named at their place, above a guesser of the most frequent token",
    "answer_token_effect": "tokens of an answer named at their place, above a guesser of the most frequent token",
    "token_top1_gate": "most tokens that the data leave possible to be named, above a constant guesser",
    "token_top1_effect": "tokens named above a constant guesser, mean over frames",
    "rare_token_top1_effect": "rare tokens alone, named above a constant guesser",
}
"""What each metric says, for who reads a report and not docs/audit.md."""
_ROWS = {
    "forward_only": "forward rows",
    "gradient_only": "gradient rows",
    "joint_forward_gradient": "forward and gradient rows together",
    "accumulated_history": "forward rows of all frames",
    "response_side": "returned rows",
}
_PARTITION_READS = {
    "norm_product": "products of the norms",
    "sign_pattern": "signs and directions",
    "gram_pattern": "inner products",
}
_MEMBERSHIP_READS = {
    "membership": "the node's own weights",
    "frame_matching": "frames of a document that resemble frames of the training",
}


def show(value: float | None, unit: Unit | str) -> str:
    """A value in its unit: +0.52 pp, 0.576, 1024."""
    if value is None:
        return DASH
    if unit == "pp":
        return f"{value:+.2f} pp"
    return f"{value:.3f}" if unit == "ratio" else f"{value:g}"


def show_limit(coverage_ratio: float | None, carrier: str) -> str:
    """The smallest dose of a ladder, after `found` or the like: from 10 % of the rows."""
    if coverage_ratio is None:
        return "at no dose"
    return f"from {100 * coverage_ratio:g} % of the {carrier}" if coverage_ratio else "in what is there already"


def leak_sentence(result: Result, check: Check) -> str:
    """What a failed check showed, in plain words, with its number and its ceiling."""
    tell = _LEAKS.get(check.metric, _any_leak)
    return f"{tell(result, check)} (ceiling {show(check.ceiling, check.unit)})"


def _at_least(check: Check) -> str:
    value = show(check.value, check.unit)
    return value if check.lower is None else f"{value}, at least {show(check.lower, check.unit)}"


def _rows(result: Result) -> str:
    return _ROWS.get(result.family, f"rows of {result.family}")


def _support(result: Result, check: Check) -> str:
    return (
        f"in {show(check.value, check.unit)} of {result.num_frames} frames the zeros of the gradient say exactly which "
        "rows are real and which are decoys"
    )


def _partition(result: Result, check: Check) -> str:
    what = _PARTITION_READS.get(result.attack, "norms")
    return f"the {what} of {_rows(result)} tell real rows from decoys: AUC {_at_least(check)}"


def _linkage(_result: Result, check: Check) -> str:
    return f"rows of earlier frames tell decoys from real rows: AUC {_at_least(check)}"


def _membership(result: Result, check: Check) -> str:
    what = _MEMBERSHIP_READS.get(result.attack, result.attack)
    return f"{what} tell documents trained on from documents held out: AUC {_at_least(check)}"


def _members_found(result: Result, check: Check) -> str:
    what = _MEMBERSHIP_READS.get(result.attack, result.attack)
    return f"at 1 % false alarms {what} find this share of the members: {_at_least(check)}"


def _trajectory(_result: Result, check: Check) -> str:
    what = {"rare_tokens_property_auc": "rare tokens", "length_property_auc": "length"}[check.metric]
    return f"the node's own weights and moments tell the {what} of the documents that trained: AUC {_at_least(check)}"


def _effect(result: Result, check: Check) -> str:
    return f"a probe of {_rows(result)} names tokens more often than a constant guess: {_at_least(check)}"


def _rare(result: Result, check: Check) -> str:
    return f"a probe of {_rows(result)} names rare tokens: {_at_least(check)}"


def _gate(result: Result, check: Check) -> str:
    floor = show(check.floor, check.unit)
    return f"the token gate on {_rows(result)} reads {show(check.value, check.unit)}, a constant guesser {floor}"


def _property(_result: Result, check: Check) -> str:
    name = check.metric.removesuffix("_property_auc").replace("_", " ")
    return f"sizes and times of messages tell {name}: AUC {_at_least(check)}"


def _reaction(_result: Result, check: Check) -> str:
    return (
        f"gradients that lean along what was added to returned rows tell real rows from decoys: AUC {_at_least(check)}"
    )


def _active(_result: Result, check: Check) -> str:
    return f"changing what is returned names tokens more often than watching: {_at_least(check)}"


def _text(result: Result, check: Check) -> str:
    what = "answers" if check.metric == "answer_token_effect" else "texts"
    named = f"{check.counts.get('k', 0)} of {check.counts.get('n', 0)} tokens"
    return (
        f"{result.attack} rebuilds {what} from {_rows(result)}: {named} at their place, above a guesser by "
        f"{_at_least(check)}"
    )


def _any_leak(result: Result, check: Check) -> str:
    return f"{check.metric} of {result.attack} on {_rows(result)} is {_at_least(check)}"


_LEAKS: dict[str, Callable[[Result, Check], str]] = {
    "exact_support_frames": _support,
    "partition_auc": _partition,
    "linkage_auc": _linkage,
    "real_rows_property_auc": _property,
    "document_length_property_auc": _property,
    "token_rarity_property_auc": _property,
    "reaction_partition_auc": _reaction,
    "active_token_top1_effect": _active,
    "membership_auc": _membership,
    "membership_tpr_at_1_percent_fpr": _members_found,
    "rare_tokens_property_auc": _trajectory,
    "length_property_auc": _trajectory,
    "text_token_effect": _text,
    "answer_token_effect": _text,
    "token_top1_gate": _gate,
    "token_top1_effect": _effect,
    "rare_token_top1_effect": _rare,
}
