from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class Hop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOP_UNSPECIFIED: _ClassVar[Hop]
    HOP_FORWARD: _ClassVar[Hop]
    HOP_RETURN: _ClassVar[Hop]
    HOP_BACKWARD: _ClassVar[Hop]
    HOP_INPUT_GRADIENT: _ClassVar[Hop]
    HOP_CONTROL: _ClassVar[Hop]

class ChannelFamily(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_FAMILY_UNSPECIFIED: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_FORWARD_ONLY: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_GRADIENT_ONLY: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_JOINT_FORWARD_GRADIENT: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_ACTIVE_PERTURBATION: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_ACCUMULATED_HISTORY: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_STATEFUL_REMOTE_STATE: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_TIMING_METADATA: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_MEMBERSHIP_PROPERTY: _ClassVar[ChannelFamily]
    CHANNEL_FAMILY_RESPONSE_SIDE: _ClassVar[ChannelFamily]
HOP_UNSPECIFIED: Hop
HOP_FORWARD: Hop
HOP_RETURN: Hop
HOP_BACKWARD: Hop
HOP_INPUT_GRADIENT: Hop
HOP_CONTROL: Hop
CHANNEL_FAMILY_UNSPECIFIED: ChannelFamily
CHANNEL_FAMILY_FORWARD_ONLY: ChannelFamily
CHANNEL_FAMILY_GRADIENT_ONLY: ChannelFamily
CHANNEL_FAMILY_JOINT_FORWARD_GRADIENT: ChannelFamily
CHANNEL_FAMILY_ACTIVE_PERTURBATION: ChannelFamily
CHANNEL_FAMILY_ACCUMULATED_HISTORY: ChannelFamily
CHANNEL_FAMILY_STATEFUL_REMOTE_STATE: ChannelFamily
CHANNEL_FAMILY_TIMING_METADATA: ChannelFamily
CHANNEL_FAMILY_MEMBERSHIP_PROPERTY: ChannelFamily
CHANNEL_FAMILY_RESPONSE_SIDE: ChannelFamily
