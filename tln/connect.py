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
from dataclasses import dataclass
from typing import Any

from splitwire.backbone import ModelSettings, identity, load_config, load_generation_config, load_head_and_tail
from splitwire.backbone.parts import HeadModel, TailModel
from splitwire.settings import settings_hash, to_tree
from splitwire.v1 import stack_pb2
from tln.adversaries import describe_adversaries
from tln.gradient_policy import GradientPolicy, decoy_loss
from tln.keys import FrameKeys, RunKey
from tln.mechanisms import MechanismInputs
from tln.metrics import TlnMetrics, served
from tln.model import SplitModelForCausalLM
from tln.pipeline import FramePipeline, build_pipeline
from tln.recording import Recording, open_recording
from tln.session import Continuation, SessionMode, open_crossing, session_request
from tln.settings import TlnSettings
from tln.transport import GrpcTransport, Transport

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
) -> Iterator[Connected]:
    """Opens a session for the block. `make_policy` releases gradients when training; `documents` goes to the truth.

    `announce` gets the defence in force before anything crosses. `transport` stands in for the connection that the
    settings name, `run_key` for a fresh one. `continuation` goes on with a run from its checkpoint, under the streams
    of its scope, or with `fresh_noise` under those of the new session.
    """
    run_key = run_key or RunKey.generate()
    keys = FrameKeys(run_key, ratchet_steps=settings.keys.ratchet_steps)
    config = load_config(settings.model)
    pipeline = frame_pipeline(settings, keys, run_key, int(config.hidden_size))
    head, tail = load_head_and_tail(settings.model)
    policy = None if make_policy is None else make_policy(TrustedParts(head, tail, pipeline, keys))
    effective = effective_settings(settings, pipeline, policy)
    if continuation is not None and not fresh_noise:
        effective["key_scope"] = continuation.key_scope
    announce(effective["defence"])
    link = transport or GrpcTransport(settings.connection)
    recording = open_recording(
        settings.record,
        effective=effective,
        run_key=run_key,
        facts=truth_facts(settings.model, config),
        documents=documents,
    )
    with recorded(recording, link), served(settings.metrics, effective["defence"]) as metrics:
        if settings.metrics.listen:  # an observer costs a decode step time, so none without need
            link.observers.append(metrics.count)
        crossing = open_crossing(
            link,
            request_for(settings, mode),
            policy=policy,
            continuation=continuation,
            grid_scale=pipeline.grid_scale,
        )
        keys.bind(crossing.session_hash if continuation is None or fresh_noise else continuation.key_scope)
        if settings.keys.ratchet_steps:
            keys.forget()
            run_key.step_down()  # sealed by now; nothing here can derive an earlier epoch
        if recording is not None:
            recording.follow(crossing)
        model = SplitModelForCausalLM(
            config,
            head,
            tail,
            crossing,
            pipeline=pipeline,
            generation_config=load_generation_config(settings.model),
        )
        model.train(mode=False)
        yield Connected(model, run_key, recording, effective, metrics, keys.scope)


@contextmanager
def recorded(recording: Recording | None, transport: Transport) -> Iterator[None]:
    """Records the transport during the block, then closes both; a block that fails leaves an incomplete bundle."""
    if recording is not None:
        recording.attach(transport)
    try:
        yield
    except BaseException:
        transport.close()
        if recording is not None:
            recording.abandon()
        raise
    transport.close()
    if recording is not None:
        recording.close()


def frame_pipeline(settings: TlnSettings, keys: FrameKeys, run_key: RunKey, hidden_width: int) -> FramePipeline:
    """The pipeline that the settings name; its initial weights come from the run key."""
    inputs = MechanismInputs(
        stack=settings.stack.kind,
        hidden_width=hidden_width,
        block_tokens=settings.corpus.block_tokens,
        keys=keys,
        generator=run_key.stream(_SET_UP, 0, "initial-weights").generator(),
        decoy_loss=decoy_loss(settings.gradient),
    )
    return build_pipeline(settings.frame, inputs)


def request_for(settings: TlnSettings, mode: SessionMode) -> stack_pb2.OpenSessionRequest:
    """The request for the session that the settings name."""
    is_gram = settings.stack.kind == "gram"
    return session_request(
        settings.stack,
        stack_pb2.ModelIdentity() if is_gram else identity(settings.model),
        mode=mode,
        compute_dtype=settings.model.dtype,
        gram_width=settings.frame.bottleneck.width if is_gram else 0,
    )


def effective_settings(settings: TlnSettings, pipeline: FramePipeline, policy: GradientPolicy | None) -> dict[str, Any]:
    """What a bundle tells about the run: settings, their hash, and the defence in force."""
    defence = {"frame": pipeline.describe(), "gradient": {} if policy is None else policy.describe()}
    if policy is not None and settings.adversaries.is_on:
        defence["adversaries"] = describe_adversaries(settings.adversaries)
    if settings.keys.ratchet_steps:
        defence["keys"] = {"ratchet_steps": settings.keys.ratchet_steps}
    return {"settings": to_tree(settings), "settings_hash": settings_hash(settings), "defence": defence}


def truth_facts(model: ModelSettings, config: Any) -> dict[str, Any]:
    """What a scorer needs to know beside the rows."""
    return {"model": model.source, "family": config.model_type, "vocabulary_size": int(config.vocab_size)}
