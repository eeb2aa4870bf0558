"""The section [topology] of tln.toml, and which combinations it refuses.

Refused: addresses without a topology that uses them and the other way round; replicas that could not name who deviates
(fewer than three nodes); views on a stack whose rows have no share of a width; segments on the transformer
stack together with what needs rows of the second hop before the first has crossed (decoys, mixup).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from splitwire.errors import SettingsError
from splitwire.tls import split_address
from tln.connection import ConnectionSettings, check_connection

TopologyKind = Literal["single", "replicas", "views", "segments"]

_MIN_REPLICAS = 3
_NUM_SEGMENTS = 2
_NEEDS_EARLIER_ROWS = ("decoys", "mixup")


@dataclass(frozen=True)
class TopologySettings:
    """Several untrusted nodes. All of them are reached with the keys and limits of [connection]."""

    kind: TopologyKind = "single"
    """One node; the same bytes to each and the median of the answers (replicas); a share of the width to each (views);
    one after the other (segments)."""
    addresses: tuple[str, ...] = ()
    """host:port of the nodes beside connection.address, which is the first."""
    server_names: tuple[str, ...] = ()
    """Names that their certificates must carry, one for each address; empty for the hosts of the addresses."""
    max_deviation: float = 0.02
    """Replicas: largest distance of an answer's row from the median, relative to the median row's norm."""
    on_deviation: Literal["stop", "warn"] = "stop"
    """Replicas: whether a deviating node ends the run, or is reported while the run goes on with the median."""
    segment_1_end: int = 0
    """Segments, transformer stack: layer after the first node's last one. It starts at model.first_layer."""
    segment_2_start: int = 0
    """Segments, transformer stack: first layer of the second node, which ends at model.last_layer. What is between runs
    here."""

    @property
    def num_nodes(self) -> int:
        """K."""
        return 1 + len(self.addresses)

    @property
    def num_recorded(self) -> int:
        """Nodes whose sessions are recorded: replicas see the same, and recording it K times would mislead an audit."""
        return 1 if self.kind == "replicas" else self.num_nodes

    @property
    def num_views(self) -> int:
        """Shares of the width; 1 but for views."""
        return self.num_nodes if self.kind == "views" else 1


def connections(settings: TopologySettings, first: ConnectionSettings) -> list[ConnectionSettings]:
    """The connections of all nodes, in order."""
    names = settings.server_names or ("",) * len(settings.addresses)
    return [
        first,
        *(
            replace(first, address=address, server_name=name)
            for address, name in zip(settings.addresses, names, strict=True)
        ),
    ]


def check_topology(
    settings: TopologySettings, *, connection: ConnectionSettings, stack: str, width: int, mechanisms: Sequence[str]
) -> None:
    """SettingsError for what this topology refuses. `width` is the bottleneck's."""
    if settings.kind == "single":
        if settings != TopologySettings():
            raise SettingsError(
                "topology is configured and topology.kind is single",
                remedy="remove the section, or set topology.kind to replicas, views or segments",
            )
        return
    _check_addresses(settings, connection)
    if settings.kind == "replicas":
        _check_replicas(settings)
    elif settings.kind == "views":
        _check_views(settings, stack, width)
    else:
        _check_segments(settings, stack, mechanisms)
    _check_idle(settings, stack)


def _check_addresses(settings: TopologySettings, connection: ConnectionSettings) -> None:
    all_addresses = (connection.address, *settings.addresses)
    for address in settings.addresses:
        split_address(address)
        if all_addresses.count(address) > 1:
            raise SettingsError(
                f"topology.addresses has {address} twice, or as connection.address",
                remedy="name different untrusted nodes",
            )
    if settings.server_names and len(settings.server_names) != len(settings.addresses):
        raise SettingsError(
            f"topology.server_names has {len(settings.server_names)} names for {len(settings.addresses)} addresses",
            remedy="give one name for each address, or none",
        )
    for each in connections(settings, connection):
        check_connection(each)


def _check_replicas(settings: TopologySettings) -> None:
    if settings.num_nodes < _MIN_REPLICAS:
        raise SettingsError(
            f"topology.kind is replicas with {settings.num_nodes} nodes, of which none could be told from a liar",
            remedy=f"name at least {_MIN_REPLICAS - 1} addresses in topology.addresses",
        )
    if not (math.isfinite(settings.max_deviation) and settings.max_deviation > 0):
        raise SettingsError(
            f"topology.max_deviation is {settings.max_deviation}", remedy="use a number above 0, such as 0.02"
        )


def _check_views(settings: TopologySettings, stack: str, width: int) -> None:
    if stack != "gram":
        raise SettingsError(
            f"topology.kind views is refused on the {stack} stack: its layers compute on rows of the whole width",
            remedy="set stack.kind = 'gram', or another topology",
        )
    if settings.num_nodes == 1 or width % settings.num_nodes or width // settings.num_nodes <= 1:
        raise SettingsError(
            f"topology.kind views cannot share frame.bottleneck.width {width} between {settings.num_nodes} nodes",
            remedy="use at least 2 nodes and a width that is a multiple of their number, at least 2 for each",
        )


def _check_segments(settings: TopologySettings, stack: str, mechanisms: Sequence[str]) -> None:
    if settings.num_nodes != _NUM_SEGMENTS:
        raise SettingsError(
            f"topology.kind is segments with {settings.num_nodes} nodes", remedy="name one address: two nodes in all"
        )
    for name in _NEEDS_EARLIER_ROWS:
        if stack == "transformer" and name in mechanisms:
            raise SettingsError(
                f"mechanism {name} is refused with topology.kind segments on the transformer stack: it needs rows that "
                "the first node's layers have computed, and there are none before the first frame has crossed",
                remedy=f"take {name!r} out of frame.mechanisms, or use another topology",
            )
    if stack == "transformer" and not 1 <= settings.segment_1_end <= settings.segment_2_start:
        raise SettingsError(
            f"topology.segment_1_end {settings.segment_1_end} and segment_2_start {settings.segment_2_start} are no "
            "cut of the delegated layers",
            remedy="use model.first_layer < segment_1_end <= segment_2_start < model.last_layer",
        )


def _check_idle(settings: TopologySettings, stack: str) -> None:
    defaults = TopologySettings()
    used = {
        "replicas": ("max_deviation", "on_deviation"),
        "segments": ("segment_1_end", "segment_2_start") if stack == "transformer" else (),
    }.get(settings.kind, ())
    for name in ("max_deviation", "on_deviation", "segment_1_end", "segment_2_start"):
        if name not in used and getattr(settings, name) != getattr(defaults, name):
            raise SettingsError(
                f"topology.{name} is set and does nothing with topology.kind {settings.kind} on the {stack} stack",
                remedy=f"remove topology.{name}",
            )
