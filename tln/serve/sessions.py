"""Sessions with the untrusted node, each with a defence of its own, and one recording of them all.

Every session is what `tln.connect.connect` opens: a transport, a crossing, frame keys bound to the session's hash, and
the pipeline that the settings name. They share the run key, so streams differ by the session's hash alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from splitwire.v1 import stack_pb2
from tln.connect import frame_pipeline
from tln.context import StepContext
from tln.crossing import Crossing
from tln.keys import FrameKeys, RunKey
from tln.metrics import TlnMetrics
from tln.pipeline import FramePipeline
from tln.prefill import Part
from tln.recording import Recording
from tln.replay_window import ReplayWindow
from tln.session import open_crossing
from tln.settings import TlnSettings
from tln.told import pass_truth
from tln.transport import GrpcTransport


@dataclass(frozen=True)
class Passage:
    """Rows of one text that are about to cross: hidden [1, T, H] of `tokens`, which follow `past` others of the text.

    `document` is its index in the truth's table; None without a recording.
    """

    rows: torch.Tensor
    tokens: Sequence[int]
    past: int
    cache_id: int
    document: int | None = None


@dataclass(frozen=True)
class Session:
    """An open session. One thread at a time."""

    crossing: Crossing
    pipeline: FramePipeline
    transport: GrpcTransport

    @property
    def is_connected(self) -> bool:
        """Whether its stream is up."""
        return self.transport.is_attached

    def ask_health(self, timeout_seconds: float) -> str:
        """What the untrusted node says of itself on this session's connection. Any thread may ask."""
        return self.transport.ask_health(timeout_seconds)

    @torch.no_grad()
    def carry(self, passage: Passage) -> torch.Tensor:
        """Hidden rows [1, T, H] after the delegated layers: protected, sent, received and restored."""
        context = StepContext(step=self.crossing.reserve_step(), mode="cached", cache_id=passage.cache_id)
        if self.crossing.forward_listeners or len(self.pipeline.mechanisms):
            _tell(context, passage)
        frame = self.pipeline.protect(passage.rows, context)
        returned = self.crossing.cross(frame.rows, context, frame.truth)
        return self.pipeline.restore(returned, context)


def _tell(context: StepContext, passage: Passage) -> None:
    tokens = torch.tensor([list(passage.tokens)])
    document = None if passage.document is None else torch.tensor([passage.document])
    pass_truth(tokens, None, passage.past, documents=document).tell(context, Part(0, tokens.shape[1]))


@dataclass(frozen=True)
class SessionMaker:
    """Opens sessions under the settings. `hidden_width` is H."""

    settings: TlnSettings
    request: stack_pb2.OpenSessionRequest
    run_key: RunKey
    hidden_width: int
    recording: Recording | None
    metrics: TlnMetrics

    def open(self) -> Session:
        """A new session; PeerError when the untrusted node refuses it or is not there."""
        connection = self.settings.connection
        transport = GrpcTransport(connection)
        if self.recording is not None:
            self.recording.attach(transport)
        transport.observers.append(self.metrics.count)
        transport.meter = self.metrics
        keys = FrameKeys(self.run_key)
        try:
            pipeline = frame_pipeline(self.settings, keys, self.run_key, self.hidden_width)
            crossing = open_crossing(
                transport, self.request, grid_scale=pipeline.grid_scale, recovery=connection.recovery
            )
            transport.attach()
        except BaseException:
            transport.close()
            raise
        keys.bind(crossing.session_hash)
        crossing.window = ReplayWindow(connection.replay_window)
        if self.recording is not None:
            self.recording.follow(crossing)
        return Session(crossing, pipeline, transport)
