"""Everything a trusted node is told, in sections, and which combinations are refused.

    [model] [connection] [stack] [frame] [keys] [gradient] [corpus] [loss] [adversaries] [prepare] [train]
    [record] [metrics] [topology] [serve]

Each section is the dataclass of the component that reads it, which checks its own values. Here are the refusals
that need two sections: what a stack cannot take, and settings that would be without effect. A setting that claims
something which is off must fail, so idle sections are errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from splitwire.backbone import ModelSettings
from splitwire.errors import SettingsError
from tln.adversaries import AdversarySettings, check_adversaries
from tln.connection import ConnectionSettings, check_connection
from tln.gradient_policy import GradientSettings, check_gradient, decoy_loss
from tln.mechanisms.scale_sign import ScaleSign, check_surrogate
from tln.metrics import MetricsSettings
from tln.pipeline import FrameSettings, check_frame
from tln.ratchet import KeySettings, check_keys
from tln.recording import RecordSettings, check_recording
from tln.serve.settings import ServeSettings
from tln.stack_settings import GramStackSettings, LoraSettings, StackSettings, check_stack
from tln.topology.settings import TopologySettings, check_topology
from tln.training.corpus import CorpusSettings, check_corpus
from tln.training.losses import LossSettings, check_loss
from tln.training.settings import PrepareSettings, TrainSettings, check_prepare, check_train


@dataclass(frozen=True)
class TlnSettings:
    """The settings of every `tln` command; each command checks the sections that it uses."""

    model: ModelSettings = field(default_factory=ModelSettings)
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    stack: StackSettings = field(default_factory=StackSettings)
    frame: FrameSettings = field(default_factory=FrameSettings)
    keys: KeySettings = field(default_factory=KeySettings)
    gradient: GradientSettings = field(default_factory=GradientSettings)
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    adversaries: AdversarySettings = field(default_factory=AdversarySettings)
    prepare: PrepareSettings = field(default_factory=PrepareSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)
    serve: ServeSettings = field(default_factory=ServeSettings)


def check_generation(settings: TlnSettings) -> None:
    """SettingsError for what cannot generate text."""
    if settings.stack.kind != "transformer":
        raise SettingsError(
            f"stack.kind {settings.stack.kind} cannot generate: it is not causal",
            remedy="set stack.kind = 'transformer'",
        )
    if "decoys" in settings.frame.mechanisms:
        raise SettingsError(
            "frame.mechanisms has decoys, which have no place in a key-value cache",
            remedy="take 'decoys' out of frame.mechanisms for generation",
        )
    if settings.stack.resume_checkpoint:
        raise SettingsError(
            "stack.resume_checkpoint is set; a session for generation has nothing that was trained",
            remedy="remove it, or resume with tln train",
        )
    _check_shared(settings)


def check_training(settings: TlnSettings) -> None:
    """SettingsError for what `tln train` cannot do, or would claim and not do."""
    check_training_session(settings)
    check_corpus(settings.corpus)
    check_loss(settings.loss)
    check_adversaries(settings.adversaries, settings.frame.mechanisms)
    check_train(settings.train)
    if settings.frame.decoys.kind == "reencoded" and settings.train.train_head:
        raise SettingsError(
            "frame.decoys.kind is 'reencoded' and train.train_head is set: kept rows are of an older head",
            remedy="leave the head frozen, or use the kind 'recycled'",
        )
    _check_forgetting(settings)
    check_prepare(settings.prepare)
    _check_public_phase(settings)
    _check_folders(settings)


def check_training_session(settings: TlnSettings) -> None:
    """The part of it that a training session needs, whoever runs the loop and brings the text."""
    stack = settings.stack
    if stack.kind == "gram":
        if settings.model.dtype != "fp32":
            raise SettingsError(
                f"model.dtype is {settings.model.dtype} and the gram stack computes in fp32",
                remedy="set model.dtype = 'fp32'",
            )
        if stack.trainable != StackSettings.trainable or stack.lora != LoraSettings():
            raise SettingsError(
                "stack.trainable or stack.lora is set and stack.kind is gram, which trains all it has",
                remedy="remove them, or set stack.kind = 'transformer'",
            )
        if ScaleSign.name in settings.frame.mechanisms:
            check_surrogate(radial=stack.gram.radial, sign_invariant=stack.gram.sign_invariant)
    elif stack.gram != GramStackSettings():
        raise SettingsError(
            "stack.gram is configured and stack.kind is transformer",
            remedy="remove the section, or set stack.kind = 'gram'",
        )
    elif stack.trainable != "lora" and stack.lora != LoraSettings():
        raise SettingsError(
            f"stack.lora is configured and stack.trainable is {stack.trainable}",
            remedy="remove the section, or set stack.trainable = 'lora'",
        )
    check_gradient(settings.gradient)
    _check_decoy_loss(settings)
    _check_shared(settings)


def _check_public_phase(settings: TlnSettings) -> None:
    if settings.train.public_steps and not settings.corpus.public_path:
        raise SettingsError(
            f"train.public_steps is {settings.train.public_steps} and corpus.public_path is empty",
            remedy="name public text (and corpus.public_blocks = 0 for all of it), or set train.public_steps = 0",
        )


def _check_forgetting(settings: TlnSettings) -> None:
    if settings.keys.ratchet_steps and settings.train.checkpoint_every:
        raise SettingsError(
            "keys.ratchet_steps and train.checkpoint_every are both set: a checkpoint keeps the run key, from which "
            "every forgotten key derives",
            remedy="set one of them to 0",
        )


def _check_decoy_loss(settings: TlnSettings) -> None:
    if decoy_loss(settings.gradient) != "none" and "decoys" not in settings.frame.mechanisms:
        raise SettingsError(
            f"gradient.policy {settings.gradient.policy!r} is about decoys and there are none",
            remedy="add 'decoys' to frame.mechanisms, or use the policy 'clip_noise'",
        )


def _check_folders(settings: TlnSettings) -> None:
    if not settings.record.folder:
        return
    out, record = Path(settings.train.out).resolve(), Path(settings.record.folder).resolve()
    if out.is_relative_to(record):
        raise SettingsError(
            f"train.out {settings.train.out} is in record.folder {settings.record.folder}",
            remedy="name another folder: a bundle holds nothing but what was recorded",
        )


def _check_grid(settings: TlnSettings) -> None:
    is_int8, mechanisms = settings.stack.request_dtype == "int8", settings.frame.mechanisms
    if "fixed_grid" in mechanisms and not is_int8:
        raise SettingsError(
            f"frame.mechanisms has fixed_grid and stack.request_dtype is {settings.stack.request_dtype}",
            remedy="set stack.request_dtype = 'int8', or take 'fixed_grid' out of frame.mechanisms",
        )
    if is_int8 and "scale_sign" in mechanisms and "fixed_grid" not in mechanisms:
        raise SettingsError(
            "stack.request_dtype is int8 with a scale a row, which takes the secret out of scale_sign",
            remedy="add 'fixed_grid' to frame.mechanisms, or use another stack.request_dtype",
        )


def _check_topology(settings: TlnSettings) -> None:
    kind = settings.topology.kind
    check_topology(
        settings.topology,
        connection=settings.connection,
        stack=settings.stack.kind,
        width=settings.frame.bottleneck.width,
        mechanisms=settings.frame.mechanisms,
    )
    idle: list[tuple[str, bool]] = []
    if kind != "single":
        idle.append(("train.checkpoint_every, which keeps one session", settings.train.checkpoint_every > 0))
    if kind == "segments":
        idle += [
            ("adversaries, which read the first hop only", settings.adversaries.is_on),
            ("keys.ratchet_steps, which has one scope", settings.keys.ratchet_steps > 0),
            (f"gradient.policy {settings.gradient.policy}", decoy_loss(settings.gradient) != "none"),
        ]
    for what, is_set in idle:
        if is_set:
            raise SettingsError(
                f"topology.kind {kind} is refused together with {what}", remedy="remove one of the two settings"
            )


def _check_shared(settings: TlnSettings) -> None:
    check_stack(settings.stack)
    check_keys(settings.keys)
    check_frame(settings.frame, settings.stack.kind)
    _check_grid(settings)
    check_recording(settings.record)
    check_connection(settings.connection)
    _check_topology(settings)
