"""StackService: opening a session, its stream, and its end.

Requests arrive as raw bytes and are parsed here, so that a request is known by the bytes that were received. Errors
are raised; what a peer gets to read of them is decided in ucn.status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import torch

import splitwire
from splitwire.errors import LimitError, PeerError
from splitwire.frames import FrameLimits
from splitwire.settings import to_tree
from splitwire.v1 import stack_pb2
from splitwire.wire import CHUNK_BYTES, PROTOCOL_VERSION, SERVICE, session_hash
from ucn import call as calls
from ucn.admission import CacheBudget
from ucn.batching import Batcher
from ucn.caches import SessionCaches
from ucn.checkpoints import CheckpointStore
from ucn.executor import DeviceExecutor
from ucn.handshake import check_request
from ucn.intake import Intake, Request, parse
from ucn.metrics import Direction, UcnMetrics
from ucn.node import Node
from ucn.replies import ReplyCache
from ucn.session import Session
from ucn.sessions import SessionTable
from ucn.settings import UcnSettings
from ucn.snapshots import SessionSnapshots, SnapshotStore
from ucn.stacks.base import SharedStack, Stack
from ucn.steps import Outcome, Terms
from ucn.streams import StreamHandle
from ucn.together import CachedFrame, Sharing, compute_together

_MAX_WIDTH = 1 << 16
_ANSWERING_HOPS = {"FORWARD": "RETURN", "BACKWARD": "INPUT_GRADIENT", "CONTROL": "CONTROL"}


class StackServicer:
    """The three methods over one node and one table of sessions."""

    def __init__(self, settings: UcnSettings, node: Node, table: SessionTable, metrics: UcnMetrics) -> None:
        self._settings = settings
        self._node = node
        self._table = table
        self._metrics = metrics
        self._cache_budget = CacheBudget(
            settings.limits.max_total_cache_bytes, settings.limits.max_cache_bytes_per_peer, settings.admission
        )
        self._snapshots = SnapshotStore(settings.snapshots, to_tree(settings.model))
        self._checkpoints = CheckpointStore(settings.checkpoint_dir, settings.limits.max_checkpoints_per_peer)
        self._batcher = Batcher(node.transformer_executor, settings.batching, self._compute_together)
        self._work: set[asyncio.Future[Any]] = set()
        self._limits = FrameLimits(settings.limits.max_frame_bytes, settings.limits.max_rows, _MAX_WIDTH)

    def shutdown(self) -> None:
        """Waits for snapshots that are being written, once every session has ended."""
        self._snapshots.shutdown()

    @property
    def cache_bytes(self) -> int:
        """Bytes that the caches of all sessions have booked."""
        return self._cache_budget.used_bytes

    @property
    def cache_waiting(self) -> int:
        """Caches that wait for room to start."""
        return self._cache_budget.num_waiting

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for a grpc.aio server, without serializers: bytes in, bytes out."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "OpenSession": grpc.unary_unary_rpc_method_handler(self.open_session),
                "Exchange": grpc.stream_stream_rpc_method_handler(self.exchange),
                "CloseSession": grpc.unary_unary_rpc_method_handler(self.close_session),
            },
        )

    async def open_session(self, raw: bytes, _context: Any) -> bytes:
        """Negotiates and builds a session."""
        request = parse(stack_pb2.OpenSessionRequest, raw)
        self._count("CONTROL", "request", len(raw))
        check_request(
            request,
            stacks=self._settings.stacks,
            identity=self._node.identity,
            compute_dtype=self._settings.model.dtype,
        )
        session = await self._table.open(
            calls.current().peer,
            lambda session_id: self._build(session_id, request),
            trains_copy=request.trainable_scope == stack_pb2.TRAINABLE_SCOPE_FULL,
        )
        calls.current().session = session.hash
        answer = self._grant(session, request).SerializeToString()
        self._count("CONTROL", "response", len(answer))
        return answer

    async def close_session(self, raw: bytes, _context: Any) -> bytes:
        """Frees a session."""
        request = parse(stack_pb2.CloseSessionRequest, raw)
        self._count("CONTROL", "request", len(raw))
        session = self._table.find(request.session_id, calls.current().peer)
        calls.current().session = session.hash
        await self._table.close(session, "closed")
        return stack_pb2.CloseSessionResponse().SerializeToString()

    async def exchange(self, _requests: Any, context: Any) -> None:
        """Serves one stream of a session."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler runs in a task")
        stream = StreamHandle(task)
        await stream.guard(self._serve(stream, context))

    async def _serve(self, stream: StreamHandle, context: Any) -> None:
        intake = Intake(
            context,
            self._limits,
            attach_timeout_seconds=self._settings.attach_timeout_seconds,
            frame_timeout_seconds=self._settings.frame_timeout_seconds,
            count=lambda hop, num_bytes: self._count(hop, "request", num_bytes),
        )
        attach = await intake.attach()
        session = self._table.attach(attach.session_id, calls.current().peer, stream)
        calls.current().session = session.hash
        try:
            attached = stack_pb2.Attached(last_step=await session.settle())
            await self._send(context, "CONTROL", [stack_pb2.ExchangeResponse(attached=attached).SerializeToString()])
            while (request := await intake.next()) is not None:
                await self._answer(session, request, stream, context)
        finally:
            self._table.detach(session, stream)

    async def _answer(self, session: Session, request: Request, stream: StreamHandle, context: Any) -> None:
        stream.begin_answer()
        calls.current().num_requests += 1
        # The work outlives its stream: the answer is kept for a peer that comes back for it.
        work = asyncio.ensure_future(session.answer(request))
        self._work.add(work)
        work.add_done_callback(self._forget)
        messages = await asyncio.shield(work)
        await self._send(context, _ANSWERING_HOPS[request.hop_name], messages)
        stream.finish_answer()

    async def _send(self, context: Any, hop: str, messages: Sequence[bytes]) -> None:
        for message in messages:
            await context.write(message)
            self._count(hop, "response", len(message))

    async def _build(self, session_id: str, request: stack_pb2.OpenSessionRequest) -> Session:
        owner = calls.current().peer
        executor = self._node.executor_for(request.stack_kind)
        hashed = session_hash(session_id)
        stack, digest, snapshots = await executor.run(lambda: self._open_stack(owner, request, hashed))
        return Session(
            session_id,
            owner,
            terms=Terms.of(request, self._settings.limits.max_kept_rows),
            stack=stack,
            executor=executor,
            caches=SessionCaches(self._cache_budget, self._settings.limits.max_cache_bytes, owner),
            replies=ReplyCache(self._settings.limits.max_reply_bytes),
            metrics=self._metrics,
            save=lambda label, stack: self._checkpoints.save(owner, label, stack.state()),
            drop=lambda label: self._checkpoints.drop(owner, label),
            resumed_digest=digest,
            snapshots=snapshots,
            sharing=self._sharing(stack, executor),
        )

    def _sharing(self, stack: Stack, executor: DeviceExecutor) -> Sharing | None:
        if not isinstance(stack, SharedStack):
            return None
        return Sharing(
            stack,
            executor,
            self._batcher,
            piece_positions=self._settings.batching.prefill_positions,
            timed=lambda: self._metrics.step("forward"),
        )

    def _compute_together(self, frames: Sequence[CachedFrame]) -> Sequence[Outcome | Exception]:
        """One pass. Runs on the device's thread."""
        with self._metrics.step("forward"):
            return compute_together(frames, self._node.transformer_executor.device, self._metrics.count_batch)

    def _open_stack(
        self, owner: str, request: stack_pb2.OpenSessionRequest, hashed: str
    ) -> tuple[Stack, str, SessionSnapshots | None]:
        """The stack, the digest of the checkpoint that is in it, and its snapshots. Runs on the device's thread."""
        digest = ""
        try:
            stack = self._node.open_stack(request)
            if request.resume_checkpoint:
                digest = self._resume(stack, owner, request.resume_checkpoint)
        except torch.OutOfMemoryError:
            raise LimitError(
                "the device has no memory left for the session", remedy="wait until other sessions have ended"
            ) from None
        return stack, digest, self._snapshots.open(hashed, request, stack)

    def _resume(self, stack: Stack, owner: str, label: str) -> str:
        try:
            saved = self._checkpoints.load(owner, label)
            stack.load_state(saved.tensors, saved.facts)
        except PeerError:
            stack.close()
            raise
        return saved.digest

    def _grant(self, session: Session, request: stack_pb2.OpenSessionRequest) -> stack_pb2.OpenSessionResponse:
        is_gram = session.terms.is_gram
        return stack_pb2.OpenSessionResponse(
            session_id=session.session_id,
            protocol_version=PROTOCOL_VERSION,
            model=request.model if is_gram else self._node.identity,
            max_chunk_bytes=CHUNK_BYTES,
            max_frame_bytes=self._settings.limits.max_frame_bytes,
            lease_seconds=self._settings.lease_seconds,
            num_trainable_parameters=session.stack.num_trainable_parameters,
            software_version=splitwire.__version__,
            resumed_digest=session.resumed_digest,
        )

    def _count(self, hop: str, direction: Direction, num_bytes: int) -> None:
        facts = calls.current()
        if direction == "request":
            facts.num_bytes_in += num_bytes
        else:
            facts.num_bytes_out += num_bytes
        self._metrics.count_bytes(hop, direction, num_bytes)

    def _forget(self, work: asyncio.Future[Any]) -> None:
        """Lets go of work that has ended, and takes its exception in case its stream is gone and nobody else does."""
        self._work.discard(work)
        if not work.cancelled():
            work.exception()
