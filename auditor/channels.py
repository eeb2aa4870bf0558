"""The nine channel families on which an untrusted node can attack, as the audit names them.

A name is the proto's enum value in lower case without its prefix, such as `forward_only`. Every result carries one. A
family of the scope that no attack of the plan measured is reported as not measured, with what it would need.
"""

from __future__ import annotations

from dataclasses import dataclass

from splitwire.errors import SettingsError
from splitwire.v1 import channels_pb2

_PREFIX = "CHANNEL_FAMILY_"


@dataclass(frozen=True)
class Family:
    """One channel family: its proto value, the hops whose tensors it reads, and what a bundle set must hold for it."""

    value: channels_pb2.ChannelFamily
    hops: tuple[channels_pb2.Hop, ...]
    needs: str

    @property
    def name(self) -> str:
        """Lower-case name without the prefix of the enum."""
        return channels_pb2.ChannelFamily.Name(self.value).removeprefix(_PREFIX).lower()

    @property
    def title(self) -> str:
        """The name as prose."""
        return self.name.replace("_", " ")


_FORWARD, _BACKWARD = channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD
_ALL = (
    Family(channels_pb2.CHANNEL_FAMILY_FORWARD_ONLY, (_FORWARD,), "forward frames with truth"),
    Family(channels_pb2.CHANNEL_FAMILY_GRADIENT_ONLY, (_BACKWARD,), "training steps with truth"),
    Family(channels_pb2.CHANNEL_FAMILY_JOINT_FORWARD_GRADIENT, (_FORWARD, _BACKWARD), "training steps with truth"),
    Family(channels_pb2.CHANNEL_FAMILY_ACTIVE_PERTURBATION, (_FORWARD, _BACKWARD), "a bundle from the active tap"),
    Family(channels_pb2.CHANNEL_FAMILY_ACCUMULATED_HISTORY, (_FORWARD, _BACKWARD), "two epochs or reused text"),
    Family(channels_pb2.CHANNEL_FAMILY_STATEFUL_REMOTE_STATE, (), "snapshots of the untrusted node's weights"),
    Family(channels_pb2.CHANNEL_FAMILY_TIMING_METADATA, (), "a bundle of the tap, with its times"),
    Family(channels_pb2.CHANNEL_FAMILY_MEMBERSHIP_PROPERTY, (_FORWARD, _BACKWARD), "held-out documents"),
    Family(channels_pb2.CHANNEL_FAMILY_RESPONSE_SIDE, (channels_pb2.HOP_RETURN,), "returned rows"),
)
FAMILIES = {family.name: family for family in _ALL}

FORWARD_ONLY = "forward_only"
GRADIENT_ONLY = "gradient_only"
JOINT = "joint_forward_gradient"
ACCUMULATED_HISTORY = "accumulated_history"
ACTIVE_PERTURBATION = "active_perturbation"
STATEFUL_REMOTE_STATE = "stateful_remote_state"
TIMING_METADATA = "timing_metadata"
MEMBERSHIP_PROPERTY = "membership_property"
RESPONSE_SIDE = "response_side"


def family(name: str) -> Family:
    """The family of that name; SettingsError with the nine names when there is none."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise SettingsError(f"channel family {name!r} is unknown", remedy=f"use {', '.join(FAMILIES)}") from None
