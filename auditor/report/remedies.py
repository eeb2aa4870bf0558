"""What to do about a finding, in sentences: the setting of the trusted node, or what else to record.

BY_CHECK, BY_ATTACK and BY_FAMILY say which of them a check that failed asks for; advice.py chooses.
"""

from __future__ import annotations

from auditor.channels import (
    ACCUMULATED_HISTORY,
    ACTIVE_PERTURBATION,
    FORWARD_ONLY,
    GRADIENT_ONLY,
    JOINT,
    MEMBERSHIP_PROPERTY,
    RESPONSE_SIDE,
    STATEFUL_REMOTE_STATE,
    TIMING_METADATA,
)

SUPPORT = (
    'Zeros name the decoys: set gradient.policy = "clip_noise" in tln.toml (never "open"), so that every row is noised.'
)
GRADIENT_NORMS = (
    "Gradient norms tell decoys from real rows: clip lower (gradient.clip_norm or gradient.clip_multiple) and raise "
    "gradient.noise_multiplier, so that the noise hides how long a row was. This costs utility; train reports it."
)
_FORWARD_NORMS = (
    "Forward norms tell decoys from real rows: put clip_noise and decoys into frame.mechanisms, so that decoys are "
    "clipped and noised like real rows."
)
GRADIENT_TOKENS = (
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
WHOLE = "Give whole evidence: every bundle of the run, closed by its recorder without drops, and its truth.sealed."
READ_ALL = (
    "Frames crossed that the plan does not read: the default plan reads those of training, evaluation and generation; "
    "in a plan of your own, name their mode in compute_modes, and for generation an inversion attack in attacks."
)
EVERY_FAMILY = (
    "A pass needs every family that the bundles show an attacker. Put them into families and scope of the plan "
    "(auditor plan init FILE writes one with all of them), and record what the others need."
)
WORKS = "An instrument was not shown to work: record more frames, or raise probe.epochs in the plan."
CALIBRATE = (
    "Nothing says yet how small a leak would have been found: run auditor calibrate with the same bundles and plan, "
    "and audit with --calibration calibration/calibration.json."
)
NOT_EVERY_LEAK_FOUND = (
    "The calibration did not find every kind of leak: calibrate with more frames (calibration.max_frames of the plan), "
    "or with an attack of that question that reads such leaks. A plan whose calibration.modes leaves one out does not "
    "speak of it, and its scope line says so."
)
CONTROL = (
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
BY_CHECK = {
    ("exact_support_frames", GRADIENT_ONLY): (SUPPORT,),
    ("partition_auc", GRADIENT_ONLY): (GRADIENT_NORMS,),
    ("partition_auc", FORWARD_ONLY): (_FORWARD_NORMS,),
    ("rare_tokens_property_auc", STATEFUL_REMOTE_STATE): (_STATE,),
    ("length_property_auc", STATEFUL_REMOTE_STATE): (_STATE,),
    ("membership_auc", MEMBERSHIP_PROPERTY): (_MEMBERS,),
    ("membership_tpr_at_1_percent_fpr", MEMBERSHIP_PROPERTY): (_MEMBERS,),
    ("text_token_effect", FORWARD_ONLY): (_TEXTS,),
    ("text_token_effect", GRADIENT_ONLY): (GRADIENT_TOKENS,),
    ("text_token_effect", JOINT): (GRADIENT_TOKENS,),
    ("text_token_effect", RESPONSE_SIDE): (_ANSWERS,),
    ("answer_token_effect", RESPONSE_SIDE): (_ANSWERS,),
    ("real_rows_property_auc", TIMING_METADATA): (_TRAFFIC,),
    ("document_length_property_auc", TIMING_METADATA): (_TRAFFIC,),
    ("token_rarity_property_auc", TIMING_METADATA): (_TRAFFIC,),
    ("reaction_partition_auc", ACTIVE_PERTURBATION): (_REACTION,),
    ("active_token_top1_effect", ACTIVE_PERTURBATION): (_REACTION,),
}
BY_ATTACK = {
    "sign_pattern": (_PATTERNS,),
    "gram_pattern": (_PATTERNS,),
    "norm_product": (_PRODUCTS,),
    "frame_matching": (_MATCHED_FRAMES,),
}
BY_FAMILY = {
    FORWARD_ONLY: (_FORWARD_TOKENS,),
    GRADIENT_ONLY: (GRADIENT_TOKENS,),
    JOINT: (_FORWARD_TOKENS, GRADIENT_TOKENS),
    ACCUMULATED_HISTORY: (_REPEATS,),
    RESPONSE_SIDE: (_RETURNED,),
}
