"""What to do after an audit: which setting of the trusted node bears on what was shown, how many more documents an open
check needs, and which plan can give a pass.

Advice, not a promise: every change is audited again. The number of documents follows from the width of an interval,
which falls with their square root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from auditor.channels import (
    ACCUMULATED_HISTORY,
    ACTIVE_PERTURBATION,
    FAMILIES,
    FORWARD_ONLY,
    GRADIENT_ONLY,
    JOINT,
    MEMBERSHIP_PROPERTY,
    RESPONSE_SIDE,
    STATEFUL_REMOTE_STATE,
    TIMING_METADATA,
)
from auditor.statistics.power import MOST_GROWTH, Observed, growth_needed
from auditor.words import NO_CONTROL, UNCALIBRATED, UNFOUND

Tree = Mapping[str, Any]

_SUPPORT = (
    'Zeros name the decoys: set gradient.policy = "clip_noise" in tln.toml (never "open"), so that every row is noised.'
)
_GRADIENT_NORMS = (
    "Gradient norms tell decoys from real rows: clip lower (gradient.clip_norm or gradient.clip_multiple) and raise "
    "gradient.noise_multiplier, so that the noise hides how long a row was. This costs utility; train reports it."
)
_FORWARD_NORMS = (
    "Forward norms tell decoys from real rows: put clip_noise and decoys into frame.mechanisms, so that decoys are "
    "clipped and noised like real rows."
)
_GRADIENT_TOKENS = (
    'Gradient rows name tokens: use gradient.policy = "clip_noise" with a higher gradient.noise_multiplier or a lower '
    "clip."
)
_PATTERNS = (
    "Rows show by more than their norm which ones are real: put rotation into frame.mechanisms against signs and "
    "directions, and raise noise_multiplier of frame.clip_noise and of gradient against inner products."
)
_PRODUCTS = (
    "Forward norm times gradient norm tells decoys from real rows, whatever scale_sign does: raise noise_multiplier of "
    "frame.clip_noise and of gradient."
)
_FORWARD_TOKENS = (
    "Forward rows name tokens: put bottleneck, clip_noise and rotation into frame.mechanisms, and raise "
    "frame.clip_noise.noise_multiplier or lower frame.bottleneck.width."
)
_STATE = (
    "The node's own weights tell what trained: put more documents into a step (train.frames_per_step), and raise "
    "noise_multiplier of gradient; its clip and noise bound what one document changes."
)
_MEMBERS = (
    "The node's own weights tell who took part: train for fewer epochs, on adapters or the gram stack rather than all "
    "weights, and clip and noise the gradient (gradient.policy)."
)
_MATCHED_FRAMES = (
    "Frames of a document resemble those that trained: put clip_noise, permutation and rotation into frame.mechanisms "
    "and raise frame.clip_noise.noise_multiplier; without noise a fresh rotation alone does not hide a block."
)
_EVERY_FAMILY = (
    "A pass needs every family that the bundles show an attacker. Put them into families and scope of the plan "
    "(auditor plan init FILE writes one with all of them), and record what the others need."
)
_WORKS = "An instrument was not shown to work: record more frames, or raise probe.epochs in the plan."
_CALIBRATE = (
    "Nothing says yet how small a leak would have been found: run auditor calibrate with the same bundles and plan, "
    "and audit with --calibration calibration/calibration.json."
)
_UNFOUND = (
    "The calibration did not find every kind of leak: calibrate with more frames (calibration.max_frames of the plan), "
    "or with an attack of that question that reads such leaks. A plan whose calibration.modes leaves one out does not "
    "speak of it, and its scope line says so."
)
_CONTROL = (
    "Nothing shows yet that the attacks read rows of this kind at all: record a run of the same split on public text "
    'with no mechanism but the bottleneck, gradient.policy = "open" and gradient.unsafe = true, and audit with '
    "--control."
)
_REPEATS = (
    "Blocks that cross more than once name tokens: train for fewer epochs, and put clip_noise and rotation into "
    "frame.mechanisms, so that neither rows nor a gauge come again."
)
_RETURNED = (
    'Returned rows name tokens: set stack.kind = "gram" with bottleneck, clip_noise and rotation in frame.mechanisms; '
    "what a stack of real layers returns is read with the public model. Noise added on return hides nothing."
)
_TEXTS = (
    "Texts are rebuilt from rows of the model's own layers: noise has to be as large as the rows are to hide one. Put "
    "clip_noise into frame.mechanisms with a high noise_multiplier, delegate later layers, or keep such text here."
)
_ANSWERS = (
    "Answers are read from returned rows with the public model's last layers: keep more layers here (a smaller "
    "model.last_layer), or do not generate from private text with this node."
)
_TRAFFIC = (
    "Sizes or times of messages tell about the text: send frames of one size without row lengths, and pad the time of "
    "a step, or batch steps of several texts."
)
_REACTION = (
    "Real rows react to a change of what is returned: raise gradient.noise_multiplier or lower the clip, and let "
    'decoys bear loss (gradient.policy = "replay").'
)
_CLOSED = {
    ("exact_support_frames", GRADIENT_ONLY): (_SUPPORT,),
    ("partition_auc", GRADIENT_ONLY): (_GRADIENT_NORMS,),
    ("partition_auc", FORWARD_ONLY): (_FORWARD_NORMS,),
    ("rare_tokens_property_auc", STATEFUL_REMOTE_STATE): (_STATE,),
    ("length_property_auc", STATEFUL_REMOTE_STATE): (_STATE,),
    ("membership_auc", MEMBERSHIP_PROPERTY): (_MEMBERS,),
    ("membership_tpr_at_1_percent_fpr", MEMBERSHIP_PROPERTY): (_MEMBERS,),
    ("text_token_effect", FORWARD_ONLY): (_TEXTS,),
    ("text_token_effect", GRADIENT_ONLY): (_GRADIENT_TOKENS,),
    ("text_token_effect", JOINT): (_GRADIENT_TOKENS,),
    ("text_token_effect", RESPONSE_SIDE): (_ANSWERS,),
    ("answer_token_effect", RESPONSE_SIDE): (_ANSWERS,),
    ("real_rows_property_auc", TIMING_METADATA): (_TRAFFIC,),
    ("document_length_property_auc", TIMING_METADATA): (_TRAFFIC,),
    ("token_rarity_property_auc", TIMING_METADATA): (_TRAFFIC,),
    ("reaction_partition_auc", ACTIVE_PERTURBATION): (_REACTION,),
    ("active_token_top1_effect", ACTIVE_PERTURBATION): (_REACTION,),
}
_BY_ATTACK = {
    "sign_pattern": (_PATTERNS,),
    "gram_pattern": (_PATTERNS,),
    "norm_product": (_PRODUCTS,),
    "frame_matching": (_MATCHED_FRAMES,),
}
_TOKENS = {
    FORWARD_ONLY: (_FORWARD_TOKENS,),
    GRADIENT_ONLY: (_GRADIENT_TOKENS,),
    JOINT: (_FORWARD_TOKENS, _GRADIENT_TOKENS),
    ACCUMULATED_HISTORY: (_REPEATS,),
    RESPONSE_SIDE: (_RETURNED,),
}


def next_steps(report: Tree) -> list[str]:
    """One line a step, most urgent first."""
    steps = _controls(report)
    if steps:
        steps.append("Then train, record and audit again: what was sent already stays as leaky as it was.")
    steps += [*_evidence(report), *_instrument(report), *_documents(report), *_intervals(report)]
    steps += [*_plan(report), *_scope(report)]
    return list(dict.fromkeys(steps))


def reads_above(check: Tree) -> bool:
    """Whether a reading is above its ceiling; the value of a gate, which has an upper bound alone, is that bound."""
    is_gate = check["lower"] is None and check["upper"] is not None
    return check["value"] is not None and check["value"] > check["ceiling"] and not is_gate


def _kinds(report: Tree) -> set[str]:
    return {reason["kind"] for reason in report["verdict"]["reasons"]}


def _checks(report: Tree, state: str) -> Iterator[tuple[Tree, Tree]]:
    for result in report["results"]:
        for check in result["checks"]:
            if check["state"] == state:
                yield result, check


def _controls(report: Tree) -> list[str]:
    failed = list(_checks(report, "fail"))
    alone = {result["family"] for result, check in failed if check["unit"] == "pp"} - {JOINT}
    steps: list[str] = []
    for result, check in failed:
        family = result["family"]
        if (check["metric"], family) in _CLOSED and check["unit"] == "pp":
            steps += _CLOSED[check["metric"], family]
        elif check["unit"] == "pp":
            # The joint view repeats what either hop shows alone; only where neither does, both are named.
            steps += [] if family == JOINT and alone else _TOKENS.get(family, ())
        else:
            closed = _CLOSED.get((check["metric"], family), ())
            steps += _BY_ATTACK.get(result["attack"], closed)
    # Raw gradients: the same setting ends the zeros and bears on norms and tokens. Say it once, first.
    if _SUPPORT in steps:
        steps = [_SUPPORT, *(step for step in steps if step not in (_SUPPORT, _GRADIENT_NORMS, _GRADIENT_TOKENS))]
        steps[0] += " The other findings on gradients are read anew after that."
    return steps


def _evidence(report: Tree) -> list[str]:
    if "evidence" not in _kinds(report):
        return []
    return ["Give whole evidence: every bundle of the run, closed by its recorder without drops, and its truth.sealed."]


def _instrument(report: Tree) -> list[str]:
    texts = [reason["text"] for reason in report["verdict"]["reasons"] if reason["kind"] == "instrument"]
    unfound = any(text.startswith(UNFOUND) for text in texts)
    uncalibrated = any(text.startswith(UNCALIBRATED) and not text.startswith(UNFOUND) for text in texts)
    uncontrolled = any(text.startswith(NO_CONTROL) for text in texts)
    others = any(not text.startswith((UNCALIBRATED, NO_CONTROL)) for text in texts)
    steps = [_WORKS] if others else []
    if report["verdict"]["state"] != "fail":
        steps += [_CALIBRATE] if uncalibrated else []
        steps += [_UNFOUND] if unfound else []
        steps += [_CONTROL] if uncontrolled else []
    return steps


def _documents(report: Tree) -> list[str]:
    """More documents help where the reading itself is under the ceiling; elsewhere they would only show the leak."""
    now = sum(report["captured"]["documents_by_split"].values())
    needed = [
        _documents_needed(result, check, report)
        for result, check in _checks(report, "inconclusive")
        if result["family"] != STATEFUL_REMOTE_STATE
    ]
    known = [number for number in needed if number is not None]
    steps = []
    within = [number for number in known if number <= MOST_GROWTH * now]
    if within and max(within) > now:
        steps.append(
            f"Record about {_rounded(max(within))} documents in all instead of {now}: what reads under its ceiling "
            "could then be shown to be."
        )
    if len(within) < len(known):
        steps.append(
            f"Some checks could not be decided with even {MOST_GROWTH} times the documents: longer documents, or a "
            "plan with more classes or fewer checks, may decide them."
        )
    over = [
        f"{check['metric']} on {FAMILIES[result['family']].title if result['family'] in FAMILIES else result['family']}"
        for result, check in _checks(report, "inconclusive")
        if reads_above(check)
    ]
    if over:
        steps.append(f"Expect a fail with more data where the reading is above its ceiling already: {', '.join(over)}.")
    return steps


def _intervals(report: Tree) -> list[str]:
    """The unit of the node's own state is the interval between two snapshots, however many documents there are."""
    needed = [
        (math.ceil(result["num_frames"] * growth), int(result["num_frames"]))
        for result, check in _checks(report, "inconclusive")
        if result["family"] == STATEFUL_REMOTE_STATE and (growth := _growth(result, check, report)) and growth > 1
    ]
    if not needed:
        return []
    most, now = max(needed)
    if most > MOST_GROWTH * now:
        return [f"{now} snapshot intervals are far too few to decide what the node's own state tells."]
    wanted = _rounded(most)
    step = (
        f"Record about {wanted} snapshot intervals instead of {now}, {wanted - now} more: serve with --snapshot-every 1"
    )
    return [f"{step} and train for as many steps; what reads under its ceiling could then be shown to be."]


def _documents_needed(result: Tree, check: Tree, report: Tree) -> int | None:
    """Documents in all at which the check could be decided; None where they suffice or would only show the leak."""
    growth = _growth(result, check, report)
    now = sum(report["captured"]["documents_by_split"].values())
    return math.ceil(now * growth) if growth is not None and growth > 1 else None


def _growth(result: Tree, check: Tree, report: Tree) -> float | None:
    """How many times as much evidence the check needs; None where nothing is known or it would only show the leak."""
    observed = Observed(
        value=check["value"],
        upper=check["upper"],
        ceiling=check["ceiling"],
        minimum_detectable=check["minimum_detectable"],
        chance=(check["floor"] or 0.0) if check["unit"] == "ratio" else 0.0,
        num_documents=int(result["num_documents"]),
    )
    fewest = report["plan"]["settings"]["statistics"]["min_documents"]
    return growth_needed(observed, fewest_documents=fewest)


def _rounded(number: int) -> int:
    """Two digits, upwards: more would claim too much."""
    scale = int(10 ** max(0, len(str(number)) - 2))
    return math.ceil(number / scale) * scale


def _plan(report: Tree) -> list[str]:
    if not report["plan"]["underpowered"]:
        return []
    step = "For a verdict that can be a pass, audit with the full plan, which takes minutes: --plan default instead of"
    return [f"{step} {report['plan']['name']}."]


def _scope(report: Tree) -> list[str]:
    if not any(reason["kind"] == "not_measured" for reason in report["verdict"]["reasons"]):
        return []
    return [_EVERY_FAMILY]
