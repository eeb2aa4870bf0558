"""One private fine-tuning run from settings to report.

Order matters: texts and what `tln prepare` left, head and tail, the pipeline, the calibrated gradient policy, and only
then the recording and the session; so the effective defence is settled, shown and recorded before anything crosses.
The run key is fresh. Of the documents a random share is held out; they are named in the sealed truth as non-members
and scored by the utility gate under the same defence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from splitwire.backbone import load_tokenizer
from splitwire.bundles import WireRecord
from splitwire.errors import PeerError, SettingsError
from tln.adversaries import Adversaries
from tln.calibration import median_gradient_norm
from tln.checkpoints import Checkpoints, SavedRun, check_resumable, read_checkpoint, run_hash, tensors_of
from tln.connect import Connected, PolicyMaker, TrustedParts, connect
from tln.corpus import Blocks, Membership, split_members
from tln.exchanges import Transport
from tln.gradient_policy import GradientPolicy, build_gradient_policy
from tln.keys import RunKey
from tln.ledger import Ledger, RowPrices, reasons_against
from tln.membership import check_canaries, cross_membership_blocks, membership_blocks, training_blocks
from tln.model import SplitModelForCausalLM
from tln.prepare import Prepared, Texts, dependencies_of, load_prepared, load_texts
from tln.progress import Progress
from tln.report import Report, as_tree
from tln.results_folder import refuse_used, results_folder, write_results
from tln.settings import TlnSettings, check_training
from tln.topology.opening import sessions_of
from tln.topology.replicas import ReplicaCrossing
from tln.train_settings import TrainSettings
from tln.trainer import Trainer, TrainingText
from tln.utility import Utility, compare, judge, split_losses

Resume = Literal["never", "same_noise", "fresh_noise"]

_POOLED = ("decoys", "mixup")
_CALIBRATION_SCOPE = "calibration"
_SET_UP_SCOPE = "set-up"


def finetune(
    settings: TlnSettings,
    progress: Progress,
    announce: Callable[[Mapping[str, Any]], None],
    *,
    transport: Transport | None = None,
    resume: Resume = "never",
) -> Report:
    """Trains against the untrusted node that the settings name and returns the report, which is also in train.out.

    `announce` gets the effective defence before anything crosses. `transport` stands in for the connection. `resume`
    goes on with the run whose checkpoint is in train.out (tln.checkpoints), with the streams of its first time or, with
    "fresh_noise", with new ones.
    """
    check_training(settings)
    out = Path(settings.train.out)
    saved = None if resume == "never" else read_checkpoint(out)
    if saved is None:
        refuse_used(out)
    run_key = RunKey.generate() if saved is None else saved.run_key
    texts = load_texts(settings.model, settings.corpus, load_tokenizer(settings.model))
    dependencies = dependencies_of(settings.model, texts)
    prepared = load_prepared(settings.model, settings.prepare, dependencies)
    hashed = run_hash(settings, dependencies)
    if saved is not None:
        check_resumable(saved, hashed)
    membership = split_members(
        texts.private, settings.corpus.holdout_ratio, run_key.stream(_SET_UP_SCOPE, 0, "membership")
    )
    _check_pools(settings, texts, len(membership.train))
    check_canaries(texts.private, settings.corpus)
    with (
        results_folder(out),
        _checkpoints(settings.train, run_key, hashed, saved, resume) as checkpoints,
        connect(
            settings,
            mode="training",
            make_policy=_policy_maker(settings, texts, prepared),
            documents=_documents(texts.private, membership),
            run_key=run_key,
            announce=announce,
            transport=transport,
            continuation=None if saved is None else saved.continuation,
            fresh_noise=resume == "fresh_noise",
            has_adversaries=settings.adversaries.is_on,
        ) as connected,
    ):
        trainer = _trainer(settings, connected, texts, prepared, membership)
        ledger = _ledger(settings, connected, trainer, len(texts.private.ids), has_fresh_noise=resume == "fresh_noise")
        keep = _begin(checkpoints, connected, trainer, ledger, saved)
        report = _run(settings, connected, trainer, texts, prepared, membership, progress, keep=keep, ledger=ledger)
        write_results(out, as_tree(report), connected.model)
        refusal = _save_remotely(settings.train, connected.model)
        if checkpoints is not None:
            checkpoints.end(connected.model.crossing)
    if refusal is not None:
        raise refusal
    return report


def _trainer(
    settings: TlnSettings, connected: Connected, texts: Texts, prepared: Prepared, membership: Membership
) -> Trainer:
    needs_targets = settings.loss.needs_targets
    targets = prepared.targets if needs_targets else None
    members = training_blocks(membership, texts.private, settings.corpus)
    text = TrainingText(texts.private, members, prepared.hidden, targets, prepared.baseline_nats)
    public = None
    if settings.train.public_steps and texts.public is not None:
        targets = prepared.public_targets if needs_targets else None
        public = TrainingText(texts.public, torch.arange(len(texts.public)), None, targets)
    return Trainer(
        connected.model,
        settings.train,
        settings.loss,
        text,
        connected.run_key,
        connected.metrics.time_step,
        public,
        _adversaries(settings, connected, texts.private.labels[membership.train]),
        wire_bytes=_count_bytes(connected),
        show_loss=connected.metrics.show_loss,
    )


def _adversaries(settings: TlnSettings, connected: Connected, labels: torch.Tensor) -> Adversaries | None:
    if not settings.adversaries.is_on:
        return None
    model = connected.model
    return Adversaries(
        settings.adversaries,
        row_width=settings.frame.bottleneck.width,
        hidden_width=int(model.config.hidden_size),
        labels=labels,
        vocabulary_size=int(model.config.vocab_size),
        is_permuted="permutation" in settings.frame.mechanisms,
        run_key=connected.run_key,
        device=model.head.device,
    )


@contextmanager
def _checkpoints(
    settings: TrainSettings, run_key: RunKey, hashed: str, saved: SavedRun | None, resume: Resume
) -> Iterator[Checkpoints | None]:
    """The checkpoints of the run, when it keeps any; what it needs to go on stays when the block fails."""
    if not settings.checkpoint_every:
        yield None
        return
    checkpoints = Checkpoints(
        Path(settings.out), run_key, hashed, is_new=saved is None, fresh_noise=resume == "fresh_noise"
    )
    try:
        yield checkpoints
    except BaseException:
        checkpoints.abandon()
        raise


def _begin(
    checkpoints: Checkpoints | None, connected: Connected, trainer: Trainer, ledger: Ledger, saved: SavedRun | None
) -> Callable[[Trainer], object]:
    """Puts trainer and ledger where the run goes on; what keeps them from then on."""
    if checkpoints is None:
        return lambda _trainer: None
    crossing = connected.model.crossing
    if saved is None:
        checkpoints.begin(crossing, connected.key_scope)
    else:
        trainer.load_state(saved.tensors)
        ledger.load_state(tensors_of(saved.tensors, "ledger"))
        checkpoints.resume(saved, crossing, connected.key_scope)

    def keep(trainer: Trainer) -> None:
        kept = {f"ledger.{name}": value for name, value in ledger.state().items()}
        checkpoints.save(crossing, trainer.state() | kept, trainer.num_done)

    return keep


def _run(
    settings: TlnSettings,
    connected: Connected,
    trainer: Trainer,
    texts: Texts,
    prepared: Prepared,
    membership: Membership,
    progress: Progress,
    *,
    keep: Callable[[Trainer], object],
    ledger: Ledger,
) -> Report:
    model, run_key = connected.model, connected.run_key
    trainer.prime(progress)
    history = trainer.train(progress, keep)
    utility = _score(settings, model, run_key, texts.private, prepared, membership, progress)
    connected.metrics.show_utility(utility)
    _cross_members(settings, model, run_key, texts.private, membership, progress)
    steps = trainer.num_steps
    return Report(
        effective=dict(connected.effective),
        session_hash=model.crossing.session_hash,
        members=int(membership.is_member.sum()),
        non_members=int((~membership.is_member).sum()),
        num_trained_parameters=sum(parameter.numel() for parameter in trainer.parameters),
        history=history,
        utility=utility,
        seconds_a_step=history.seconds / steps,
        frames_a_second=steps * settings.train.frames_per_step / history.seconds,
        adversaries=_adversary_report(trainer),
        ledger=ledger.summary(),
        deviating_answers=dict(model.crossing.suspects) if isinstance(model.crossing, ReplicaCrossing) else {},
    )


def _cross_members(
    settings: TlnSettings,
    model: SplitModelForCausalLM,
    run_key: RunKey,
    blocks: Blocks,
    membership: Membership,
    progress: Progress,
) -> None:
    """Evaluation frames of members and held-out documents, when the settings ask for them."""
    count = settings.train.membership_blocks
    if count:
        chosen = membership_blocks(membership, blocks, count, run_key.stream(_SET_UP_SCOPE, 0, "membership-frames"))
        cross_membership_blocks(model, blocks, chosen, settings.train.frames_per_step, progress)


def _ledger(
    settings: TlnSettings, connected: Connected, trainer: Trainer, num_documents: int, *, has_fresh_noise: bool
) -> Ledger:
    """Follows every session whose frames are not copies of another's."""
    reasons = reasons_against(
        connected.defence, trains_on_private_text=bool(trainer.parameters), has_fresh_noise=has_fresh_noise
    )
    ledger = Ledger(num_documents, RowPrices.of(connected.defence), reasons)
    for session in sessions_of(connected.model.crossing)[: settings.topology.num_recorded]:
        session.forward_listeners.append(ledger)
    return ledger


def _adversary_report(trainer: Trainer) -> dict[str, Any]:
    """Losses by step, and seconds a step that the step's own time leaves out; empty without adversaries."""
    adversaries = trainer.adversaries
    if adversaries is None:
        return {}
    by_step = {f"{name}_by_step": values for name, values in adversaries.history.items()}
    return {"seconds_a_step": adversaries.seconds / trainer.num_steps, **by_step}


def _score(
    settings: TlnSettings,
    model: SplitModelForCausalLM,
    run_key: RunKey,
    blocks: Blocks,
    prepared: Prepared,
    membership: Membership,
    progress: Progress,
) -> Utility:
    held_out = membership.held_out
    order = torch.from_numpy(run_key.stream(_SET_UP_SCOPE, 0, "evaluation").permutations(1, len(held_out))[0])
    chosen = held_out[order][: settings.train.max_evaluation_blocks or None]
    scored = Blocks(blocks.tokens[chosen], blocks.labels[chosen], blocks.documents[chosen], blocks.ids, 0)
    losses = split_losses(model, scored, settings.stack.kind, settings.train.frames_per_step, progress)
    utility = judge(
        losses,
        prepared.baseline_nats[chosen],
        scored.documents,
        settings.train.utility_ceiling_nats,
        run_key.stream(_SET_UP_SCOPE, 0, "bootstrap"),
    )
    hidden, size = prepared.hidden[chosen], settings.train.frames_per_step
    return compare(utility, model, scored, hidden, settings.stack.kind, size, progress)


def _policy_maker(settings: TlnSettings, texts: Texts, prepared: Prepared) -> PolicyMaker:
    """Calibrates the clip on public text when the settings ask for it."""

    def make(parts: TrustedParts) -> GradientPolicy:
        if settings.gradient.policy == "open" or not settings.gradient.clip_multiple:
            return build_gradient_policy(settings.gradient, parts.keys)
        parts.keys.bind(_CALIBRATION_SCOPE)
        median = median_gradient_norm(
            parts.head,
            parts.tail,
            parts.pipeline,
            texts.public,
            prepared.public_targets,
            settings.loss,
            is_latent=settings.stack.kind == "gram",
        )
        return build_gradient_policy(settings.gradient, parts.keys, median)

    return make


def _count_bytes(connected: Connected) -> Callable[[], int]:
    """Bytes that have crossed from now on, both ways, over all sessions of the run."""
    total = 0

    def count(record: WireRecord) -> None:
        nonlocal total
        total += len(record.message)

    for session in sessions_of(connected.model.crossing):
        session.transport.observers.append(count)
    return lambda: total


def _check_pools(settings: TlnSettings, texts: Texts, num_members: int) -> None:
    """A pool that the text cannot fill would hold the same rows again and again, and a frame the same decoy twice."""
    is_public = bool(settings.train.public_steps) and texts.public is not None
    num_blocks = len(texts.public) if is_public and texts.public is not None else num_members
    available = num_blocks * (settings.corpus.block_tokens if settings.stack.kind == "gram" else 1)
    for name in _POOLED:
        if name in settings.frame.mechanisms and getattr(settings.frame, name).pool_size > available:
            raise SettingsError(
                f"frame.{name}.pool_size is {getattr(settings.frame, name).pool_size} and the "
                f"{'public' if is_public else 'training'} text has {available} rows or sequences for it",
                remedy=f"use at most {available}, or more text",
            )


def _documents(blocks: Blocks, membership: Membership) -> list[dict[str, Any]]:
    return [
        {"id": name, "member": bool(member)}
        for name, member in zip(blocks.ids, membership.is_member.tolist(), strict=True)
    ]


def _save_remotely(settings: TrainSettings, model: SplitModelForCausalLM) -> PeerError | None:
    """After the results of this node are kept. A refusal is given, so that the recording still ends whole."""
    if settings.remote_checkpoint:
        try:
            model.crossing.checkpoint(settings.remote_checkpoint)
        except PeerError as error:
            error.message += f"; what this node trained is in {settings.out}"
            return error
    return None
