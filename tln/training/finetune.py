"""One private fine-tuning run from settings to report.

Order matters: texts and what `tln prepare` left, head and tail, the pipeline, the calibrated gradient policy, and only
then the recording and the session; so the effective defence is settled, shown and recorded before anything crosses.
The run key is fresh. Of the documents a random share is held out; they are named in the sealed truth as non-members
and scored by the utility gate under the same defence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from splitwire.backbone import load_tokenizer
from splitwire.bundles import WireRecord
from splitwire.errors import PeerError
from tln.adversaries import Adversaries
from tln.connect import Connected, connect
from tln.exchanges import Transport
from tln.keys import RunKey
from tln.model import SplitModelForCausalLM
from tln.settings import TlnSettings, check_training
from tln.topology.opening import sessions_of
from tln.topology.replicas import ReplicaCrossing
from tln.training.calibration import policy_maker
from tln.training.checkpoints import check_resumable, read_checkpoint, run_hash
from tln.training.corpus import Blocks, Membership, split_members
from tln.training.evaluation import SET_UP_SCOPE, cross_members, held_out_utility
from tln.training.ledger import Ledger, RowPrices, reasons_against
from tln.training.membership import check_canaries, training_blocks
from tln.training.prepare import Prepared, Texts, dependencies_of, load_prepared, load_texts
from tln.training.priming import check_pools
from tln.training.progress import Progress
from tln.training.report import Report, as_tree
from tln.training.results_folder import refuse_used, results_folder, write_results
from tln.training.resume import Resume, begin, run_checkpoints
from tln.training.settings import TrainSettings
from tln.training.text import TrainingText
from tln.training.trainer import Trainer


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
    goes on with the run whose checkpoint is in train.out (checkpoints.py), with the streams of its first time or, with
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
        texts.private, settings.corpus.holdout_ratio, run_key.stream(SET_UP_SCOPE, 0, "membership")
    )
    check_pools(settings, texts, len(membership.train))
    check_canaries(texts.private, settings.corpus)
    with (
        results_folder(out),
        run_checkpoints(settings.train, run_key, hashed, saved, resume) as checkpoints,
        connect(
            settings,
            mode="training",
            make_policy=policy_maker(settings, texts, prepared),
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
        keep = begin(checkpoints, connected, trainer, ledger, saved)
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
        public = TrainingText(texts.public, torch.arange(len(texts.public)), None, targets, is_public=True)
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
    utility = held_out_utility(settings, model, run_key, texts.private, prepared, membership, progress)
    connected.metrics.show_utility(utility)
    cross_members(settings, model, run_key, texts.private, membership, progress)
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


def _count_bytes(connected: Connected) -> Callable[[], int]:
    """Bytes that have crossed from now on, both ways, over all sessions of the run."""
    total = 0

    def count(record: WireRecord) -> None:
        nonlocal total
        total += len(record.message)

    for session in sessions_of(connected.model.crossing):
        session.transport.observers.append(count)
    return lambda: total


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
