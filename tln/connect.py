"""From settings to a split model that is connected to the untrusted node.

    with connect(settings) as split:
        split.model.generate(...)

The order is the same for everything that crosses: load head and tail, build the defence, start the recording, open
the session, bind the frame keys to it, seal the run key. Leaving the block ends the session and completes the
bundle; leaving it with an exception ends the session and leaves a bundle that says it is incomplete.

The caller has checked the settings for what it does (tln.settings.check_generation or check_training).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import json_format

from splitwire.backbone import (
    ModelSettings,
    identity,
    load_config,
    load_generation_config,
    load_head_and_tail,
    load_middle,
)
from splitwire.backbone.parts import HeadModel, TailModel
from splitwire.errors import SettingsError
from splitwire.settings import settings_hash, to_tree
from tln.adversaries import describe_adversaries
from tln.crossing import Crossing
from tln.exchanges import Transport
from tln.gradient_policy import GradientPolicy, decoy_loss
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs
from tln.metrics import TlnMetrics, served
from tln.model import SplitModelForCausalLM
from tln.pipeline import FramePipeline, build_pipeline
from tln.recording import Recording, open_recording
from tln.replay_window import ReplayWindow
from tln.session import Continuation, SessionMode
from tln.settings import TlnSettings
from tln.topology.opening import links_of, opened, sessions_of
from tln.topology.segments import RelayPipeline
from tln.transport import GrpcTransport

NO_DEFENCE = (
    "NO DEFENCE: frame.mechanisms is empty. Activations cross as they are, and whoever runs the untrusted node can "
    "read the text from them."
)
_SET_UP = "set-up"


@dataclass(frozen=True)
class TrustedParts:
    """What this node holds before a session is open: enough to calibrate a gradient policy on public text."""

    head: HeadModel
    tail: TailModel
    pipeline: FramePipeline
    keys: FrameKeys


PolicyMaker = Callable[[TrustedParts], GradientPolicy]


@dataclass(frozen=True)
class Connected:
    """A split model over an open session, and the secrets of its run."""

    model: SplitModelForCausalLM
    run_key: RunKey
    recording: Recording | None
    effective: Mapping[str, Any]
    """Settings, their hash, and the defence in force; what the bundle tells too. Nothing secret.

    A run that goes on also tells `key_scope`, since its streams are not named by its session.
    """
    metrics: TlnMetrics
    key_scope: str
    """Names the streams of the frame keys; the session's hash, or that of the session in which a run began."""

    @property
    def defence(self) -> Mapping[str, Any]:
        """The mechanisms and the gradient policy in force, with their parameters."""
        defence: Mapping[str, Any] = self.effective["defence"]
        return defence


@contextmanager
def connect(
    settings: TlnSettings,
    *,
    mode: SessionMode = "inference",
    make_policy: PolicyMaker | None = None,
    documents: Sequence[Mapping[str, Any]] = (),
    run_key: RunKey | None = None,
    announce: Callable[[Mapping[str, Any]], None] = lambda _defence: None,
    transport: Transport | None = None,
    continuation: Continuation | None = None,
    fresh_noise: bool = False,
    has_adversaries: bool = False,
) -> Iterator[Connected]:
    """Opens a session for the block. `make_policy` releases gradients when training; `documents` goes to the truth.

    `announce` gets the defence in force before anything crosses. `transport` stands in for the connection that the
    settings name, `run_key` for a fresh one; with keys.ratchet_steps it is stepped down once it is sealed.
    `continuation` goes on with a run from its checkpoint, under the streams of its scope, or with `fresh_noise` under
    those of the new session. A training loop that brings the adversaries of the settings says so with
    `has_adversaries`; one that does not is refused while they are on.
    """
    if mode == "training" and not has_adversaries:
        _refuse_adversaries(settings)
    run_key = run_key or RunKey.generate()
    keys = FrameKeys(run_key, ratchet_steps=settings.keys.ratchet_steps)
    config = load_config(settings.model)
    pipeline = frame_pipeline(settings, keys, run_key, int(config.hidden_size))
    onward_keys = FrameKeys(run_key)
    if settings.topology.kind == "segments":
        pipeline = _relayed(settings, pipeline, onward_keys, run_key, int(config.hidden_size))
    head, tail = load_head_and_tail(settings.model)
    hops = [TrustedParts(head, tail, pipeline, keys)]
    if isinstance(pipeline, RelayPipeline):
        hops.append(TrustedParts(head, tail, pipeline.second, onward_keys))
    policies = [None if make_policy is None else make_policy(hop) for hop in hops]
    effective = effective_facts(settings, pipeline, policies)
    if continuation is not None and not fresh_noise:
        effective["key_scope"] = continuation.key_scope
    announce(effective["defence"])
    links = links_of(settings, transport)
    recording = open_recording(
        settings.record,
        effective=effective,
        run_key=run_key,
        facts={**truth_facts(settings.model, config), "canary_prefix": settings.corpus.canary_prefix},
        documents=documents,
    )
    with (
        recorded(recording, links, settings.topology.num_recorded),
        served(settings.metrics, effective["defence"], settings.connection.tls) as metrics,
    ):
        if settings.metrics.listen:  # an observer costs a decode step time, so none without need
            _measure(links, metrics)
        with opened(
            settings,
            links,
            mode=mode,
            policies=policies,
            continuation=continuation,
            grid_scale=pipeline.grid_scale,
        ) as crossing:
            keys.bind(crossing.session_hash if continuation is None or fresh_noise else continuation.key_scope)
            _forget(settings, keys, run_key)
            if isinstance(pipeline, RelayPipeline):
                _connect_onward(pipeline, onward_keys, sessions_of(crossing)[1])
            for index, session in enumerate(sessions_of(crossing)):
                session.window = ReplayWindow(settings.connection.replay_window)
                if recording is not None and index < settings.topology.num_recorded:
                    recording.follow(session)
            model = SplitModelForCausalLM(
                config,
                head,
                tail,
                crossing,
                pipeline=pipeline,
                generation_config=load_generation_config(settings.model),
                prefill_positions=settings.stack.prefill_positions,
                texts=None if recording is None or mode == "training" else recording.texts,
                limits=settings.stack,
            )
            model.train(mode=False)
            yield Connected(model, run_key, recording, effective, metrics, keys.scope)


def _refuse_adversaries(settings: TlnSettings) -> None:
    if settings.adversaries.is_on:
        raise SettingsError(
            "adversaries are on and this training loop has none",
            remedy="train with tln train, or remove the [adversaries] section",
        )


@contextmanager
def recorded(recording: Recording | None, transports: Sequence[Transport], num_recorded: int) -> Iterator[None]:
    """Records the first transports during the block, then closes all; a block that fails leaves an incomplete one."""
    if recording is not None:
        for transport in transports[:num_recorded]:
            recording.attach(transport)
    try:
        yield
    except BaseException:
        _close(transports)
        if recording is not None:
            recording.abandon()
        raise
    _close(transports)
    if recording is not None:
        recording.close()


def _measure(links: Sequence[Transport], metrics: TlnMetrics) -> None:
    for link in links:
        link.observers.append(metrics.count)
        if isinstance(link, GrpcTransport):
            link.meter = metrics


def _forget(settings: TlnSettings, keys: FrameKeys, run_key: RunKey) -> None:
    """With a ratchet, once the run key is sealed: nothing here can derive an earlier epoch any more."""
    if settings.keys.ratchet_steps:
        keys.forget()
        run_key.step_down()


def _close(transports: Sequence[Transport]) -> None:
    for transport in transports:
        transport.close()


def frame_pipeline(
    settings: TlnSettings, keys: FrameKeys, run_key: RunKey, hidden_width: int, hop: int = 0
) -> FramePipeline:
    """The pipeline that the settings name; its initial weights come from the run key, other ones for another hop."""
    inputs = MechanismInputs(
        stack=settings.stack.kind,
        hidden_width=hidden_width,
        block_tokens=settings.corpus.block_tokens,
        keys=keys,
        generator=run_key.stream(_SET_UP, hop, "initial-weights").generator(),
        decoy_loss=decoy_loss(settings.gradient),
        num_views=settings.topology.num_views,
    )
    return build_pipeline(settings.frame, inputs)


def _connect_onward(pipeline: RelayPipeline, keys: FrameKeys, onward: Crossing) -> None:
    keys.bind(onward.session_hash)
    pipeline.connect(onward)


def _relayed(
    settings: TlnSettings, first: FramePipeline, keys: FrameKeys, run_key: RunKey, hidden_width: int
) -> RelayPipeline:
    """The first hop's pipeline with that of the second, and the layers between the segments, if there are any."""
    start, end = settings.topology.segment_1_end, settings.topology.segment_2_start
    between = load_middle(replace(settings.model, first_layer=start, last_layer=end)) if start < end else None
    return RelayPipeline(first, frame_pipeline(settings, keys, run_key, hidden_width, hop=1), between)


def effective_facts(
    settings: TlnSettings, pipeline: FramePipeline, policies: Sequence[GradientPolicy | None]
) -> dict[str, Any]:
    """What a bundle tells about the run: settings, their hash, and the defence in force. A policy for each hop."""
    policy, *onward = policies
    defence = {"frame": pipeline.describe(), "gradient": {} if policy is None else policy.describe()}
    for hop in onward:
        defence["segment_2.gradient"] = {} if hop is None else hop.describe()
    if settings.topology.kind != "single":
        defence["topology"] = {"kind": settings.topology.kind, "num_nodes": settings.topology.num_nodes}
    if policy is not None and settings.adversaries.is_on:
        num_steps = settings.train.public_steps + settings.train.steps
        defence["adversaries"] = describe_adversaries(settings.adversaries, num_steps)
    if settings.keys.ratchet_steps:
        defence["keys"] = {"ratchet_steps": settings.keys.ratchet_steps}
    return {"settings": to_tree(settings), "settings_hash": settings_hash(settings), "defence": defence}


def truth_facts(model: ModelSettings, config: Any) -> dict[str, Any]:
    """What a scorer needs to know beside the rows."""
    return {
        "model": model.source,
        "family": config.model_type,
        "vocabulary_size": int(config.vocab_size),
        "delegated": json_format.MessageToDict(identity(model), preserving_proto_field_name=True),
    }
