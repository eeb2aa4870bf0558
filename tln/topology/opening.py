"""Opens the sessions of a topology and makes one crossing of them.

    with opened(settings, links, mode="training", policies=[policy], grid_scale=0.0) as crossing: ...

Leaving the block ends no session: whoever made the links closes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from splitwire.backbone import identity
from splitwire.v1 import stack_pb2
from tln.crossing import Crossing
from tln.exchanges import Transport
from tln.outgoing import GradientPolicy
from tln.session import Continuation, SessionMode, open_crossing, session_request
from tln.settings import TlnSettings
from tln.topology.group import GroupCrossing
from tln.topology.replicas import ReplicaCrossing
from tln.topology.segments import SegmentsCrossing
from tln.topology.settings import connections
from tln.topology.views import ViewsCrossing
from tln.transport import GrpcTransport


def links_of(settings: TlnSettings, first: Transport | None = None) -> list[Transport]:
    """A transport for each node; `first` stands in for that of connection.address."""
    every = connections(settings.topology, settings.connection)
    return [first or GrpcTransport(every[0]), *(GrpcTransport(connection) for connection in every[1:])]


@contextmanager
def opened(
    settings: TlnSettings,
    links: Sequence[Transport],
    *,
    mode: SessionMode,
    policies: Sequence[GradientPolicy | None],
    continuation: Continuation | None = None,
    grid_scale: float = 0.0,
) -> Iterator[Crossing]:
    """The crossing of the topology. `policies` holds one policy, or with segments one for each hop."""
    requests, recovery = requests_for(settings, mode), settings.connection.recovery
    if settings.topology.kind == "single":
        yield open_crossing(
            links[0],
            requests[0],
            policy=policies[0],
            continuation=continuation,
            grid_scale=grid_scale,
            recovery=recovery,
        )
        return
    is_segments = settings.topology.kind == "segments"
    own = policies if is_segments else [None] * len(links)
    members = [
        open_crossing(link, request, policy=policy, grid_scale=grid_scale, recovery=recovery)
        for link, request, policy in zip(links, requests, own, strict=True)
    ]
    group = _group(settings, members, policies[0])
    try:
        yield group
    finally:
        group.end_threads()


def sessions_of(crossing: Crossing) -> tuple[Crossing, ...]:
    """The crossings that have a session each; what a recording follows."""
    return crossing.members if isinstance(crossing, GroupCrossing) else (crossing,)


def requests_for(settings: TlnSettings, mode: SessionMode) -> list[stack_pb2.OpenSessionRequest]:
    """The request to each node, in the order of the links."""
    topology, model, stack = settings.topology, settings.model, settings.stack
    is_gram = stack.kind == "gram"
    models = [model] * topology.num_nodes
    if topology.kind == "segments" and not is_gram:
        models = [
            dataclasses.replace(model, last_layer=topology.segment_1_end),
            dataclasses.replace(model, first_layer=topology.segment_2_start),
        ]
    requests = [
        session_request(
            stack,
            stack_pb2.ModelIdentity() if is_gram else identity(each),
            mode=mode,
            compute_dtype=model.dtype,
            gram_width=settings.frame.bottleneck.width // topology.num_views if is_gram else 0,
        )
        for each in models
    ]
    for request in requests:
        request.common_start = topology.kind == "replicas"
    return requests


def _group(settings: TlnSettings, members: Sequence[Crossing], policy: GradientPolicy | None) -> GroupCrossing:
    topology = settings.topology
    names = [connection.address for connection in connections(topology, settings.connection)]
    if topology.kind == "views":
        return ViewsCrossing(members, names, policy)
    if topology.kind == "segments":
        return SegmentsCrossing(members, names)
    return ReplicaCrossing(
        members, names, policy, max_deviation=topology.max_deviation, on_deviation=topology.on_deviation
    )
