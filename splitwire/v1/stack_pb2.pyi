from splitwire.v1 import channels_pb2 as _channels_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WireDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WIRE_DTYPE_UNSPECIFIED: _ClassVar[WireDtype]
    WIRE_DTYPE_FP32: _ClassVar[WireDtype]
    WIRE_DTYPE_BF16: _ClassVar[WireDtype]
    WIRE_DTYPE_FP16: _ClassVar[WireDtype]
    WIRE_DTYPE_INT8_ROW: _ClassVar[WireDtype]

class StackKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STACK_KIND_UNSPECIFIED: _ClassVar[StackKind]
    STACK_KIND_TRANSFORMER: _ClassVar[StackKind]
    STACK_KIND_GRAM: _ClassVar[StackKind]

class SessionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_MODE_UNSPECIFIED: _ClassVar[SessionMode]
    SESSION_MODE_INFERENCE: _ClassVar[SessionMode]
    SESSION_MODE_TRAINING: _ClassVar[SessionMode]

class TrainableScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINABLE_SCOPE_UNSPECIFIED: _ClassVar[TrainableScope]
    TRAINABLE_SCOPE_NONE: _ClassVar[TrainableScope]
    TRAINABLE_SCOPE_FULL: _ClassVar[TrainableScope]
    TRAINABLE_SCOPE_LORA: _ClassVar[TrainableScope]

class ComputeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPUTE_MODE_UNSPECIFIED: _ClassVar[ComputeMode]
    COMPUTE_MODE_EVALUATE: _ClassVar[ComputeMode]
    COMPUTE_MODE_TRAIN: _ClassVar[ComputeMode]
    COMPUTE_MODE_CACHED: _ClassVar[ComputeMode]

class PaddingSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PADDING_SIDE_UNSPECIFIED: _ClassVar[PaddingSide]
    PADDING_SIDE_LEFT: _ClassVar[PaddingSide]
    PADDING_SIDE_RIGHT: _ClassVar[PaddingSide]
WIRE_DTYPE_UNSPECIFIED: WireDtype
WIRE_DTYPE_FP32: WireDtype
WIRE_DTYPE_BF16: WireDtype
WIRE_DTYPE_FP16: WireDtype
WIRE_DTYPE_INT8_ROW: WireDtype
STACK_KIND_UNSPECIFIED: StackKind
STACK_KIND_TRANSFORMER: StackKind
STACK_KIND_GRAM: StackKind
SESSION_MODE_UNSPECIFIED: SessionMode
SESSION_MODE_INFERENCE: SessionMode
SESSION_MODE_TRAINING: SessionMode
TRAINABLE_SCOPE_UNSPECIFIED: TrainableScope
TRAINABLE_SCOPE_NONE: TrainableScope
TRAINABLE_SCOPE_FULL: TrainableScope
TRAINABLE_SCOPE_LORA: TrainableScope
COMPUTE_MODE_UNSPECIFIED: ComputeMode
COMPUTE_MODE_EVALUATE: ComputeMode
COMPUTE_MODE_TRAIN: ComputeMode
COMPUTE_MODE_CACHED: ComputeMode
PADDING_SIDE_UNSPECIFIED: PaddingSide
PADDING_SIDE_LEFT: PaddingSide
PADDING_SIDE_RIGHT: PaddingSide

class ModelIdentity(_message.Message):
    __slots__ = ("family", "first_layer", "last_layer", "hidden_width", "fingerprint")
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAST_LAYER_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    family: str
    first_layer: int
    last_layer: int
    hidden_width: int
    fingerprint: str
    def __init__(self, family: _Optional[str] = ..., first_layer: _Optional[int] = ..., last_layer: _Optional[int] = ..., hidden_width: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class LoraSettings(_message.Message):
    __slots__ = ("rank", "alpha", "target_modules")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    alpha: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[int] = ..., alpha: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ...) -> None: ...

class OptimizerSettings(_message.Message):
    __slots__ = ("beta1", "beta2", "epsilon", "weight_decay")
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    def __init__(self, beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., epsilon: _Optional[float] = ..., weight_decay: _Optional[float] = ...) -> None: ...

class GramSettings(_message.Message):
    __slots__ = ("width", "num_experts", "num_layers", "radial", "sign_invariant")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    RADIAL_FIELD_NUMBER: _ClassVar[int]
    SIGN_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    width: int
    num_experts: int
    num_layers: int
    radial: bool
    sign_invariant: bool
    def __init__(self, width: _Optional[int] = ..., num_experts: _Optional[int] = ..., num_layers: _Optional[int] = ..., radial: _Optional[bool] = ..., sign_invariant: _Optional[bool] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("protocol_version", "stack_kind", "mode", "model", "request_dtype", "response_dtype", "compute_dtype", "trainable_scope", "lora", "optimizer", "gram", "max_cache_positions", "max_cache_sequences", "resume_checkpoint", "common_start")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STACK_KIND_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_DTYPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    GRAM_FIELD_NUMBER: _ClassVar[int]
    MAX_CACHE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_CACHE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RESUME_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    COMMON_START_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    stack_kind: StackKind
    mode: SessionMode
    model: ModelIdentity
    request_dtype: WireDtype
    response_dtype: WireDtype
    compute_dtype: WireDtype
    trainable_scope: TrainableScope
    lora: LoraSettings
    optimizer: OptimizerSettings
    gram: GramSettings
    max_cache_positions: int
    max_cache_sequences: int
    resume_checkpoint: str
    common_start: bool
    def __init__(self, protocol_version: _Optional[int] = ..., stack_kind: _Optional[_Union[StackKind, str]] = ..., mode: _Optional[_Union[SessionMode, str]] = ..., model: _Optional[_Union[ModelIdentity, _Mapping]] = ..., request_dtype: _Optional[_Union[WireDtype, str]] = ..., response_dtype: _Optional[_Union[WireDtype, str]] = ..., compute_dtype: _Optional[_Union[WireDtype, str]] = ..., trainable_scope: _Optional[_Union[TrainableScope, str]] = ..., lora: _Optional[_Union[LoraSettings, _Mapping]] = ..., optimizer: _Optional[_Union[OptimizerSettings, _Mapping]] = ..., gram: _Optional[_Union[GramSettings, _Mapping]] = ..., max_cache_positions: _Optional[int] = ..., max_cache_sequences: _Optional[int] = ..., resume_checkpoint: _Optional[str] = ..., common_start: _Optional[bool] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "protocol_version", "model", "max_chunk_bytes", "max_frame_bytes", "lease_seconds", "num_trainable_parameters", "software_version", "resumed_digest")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRAINABLE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    protocol_version: int
    model: ModelIdentity
    max_chunk_bytes: int
    max_frame_bytes: int
    lease_seconds: int
    num_trainable_parameters: int
    software_version: str
    resumed_digest: str
    def __init__(self, session_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., model: _Optional[_Union[ModelIdentity, _Mapping]] = ..., max_chunk_bytes: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ..., lease_seconds: _Optional[int] = ..., num_trainable_parameters: _Optional[int] = ..., software_version: _Optional[str] = ..., resumed_digest: _Optional[str] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("hop", "step", "dtype", "shape", "total_bytes", "compute_mode", "cache_id", "row_lengths", "padding_side")
    HOP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MODE_FIELD_NUMBER: _ClassVar[int]
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PADDING_SIDE_FIELD_NUMBER: _ClassVar[int]
    hop: _channels_pb2.Hop
    step: int
    dtype: WireDtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    total_bytes: int
    compute_mode: ComputeMode
    cache_id: int
    row_lengths: _containers.RepeatedScalarFieldContainer[int]
    padding_side: PaddingSide
    def __init__(self, hop: _Optional[_Union[_channels_pb2.Hop, str]] = ..., step: _Optional[int] = ..., dtype: _Optional[_Union[WireDtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., total_bytes: _Optional[int] = ..., compute_mode: _Optional[_Union[ComputeMode, str]] = ..., cache_id: _Optional[int] = ..., row_lengths: _Optional[_Iterable[int]] = ..., padding_side: _Optional[_Union[PaddingSide, str]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("header", "chunk_index", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: FrameHeader
    chunk_index: int
    data: bytes
    def __init__(self, header: _Optional[_Union[FrameHeader, _Mapping]] = ..., chunk_index: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class OptimizerStep(_message.Message):
    __slots__ = ("learning_rate", "gradient_scale", "max_gradient_norm")
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SCALE_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    learning_rate: float
    gradient_scale: float
    max_gradient_norm: float
    def __init__(self, learning_rate: _Optional[float] = ..., gradient_scale: _Optional[float] = ..., max_gradient_norm: _Optional[float] = ...) -> None: ...

class ZeroGrad(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DiscardStep(_message.Message):
    __slots__ = ("train_step",)
    TRAIN_STEP_FIELD_NUMBER: _ClassVar[int]
    train_step: int
    def __init__(self, train_step: _Optional[int] = ...) -> None: ...

class GradientNorm(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CacheReorder(_message.Message):
    __slots__ = ("cache_id", "indices")
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    cache_id: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cache_id: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class CacheCrop(_message.Message):
    __slots__ = ("cache_id", "num_positions")
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    cache_id: int
    num_positions: int
    def __init__(self, cache_id: _Optional[int] = ..., num_positions: _Optional[int] = ...) -> None: ...

class CacheRelease(_message.Message):
    __slots__ = ("cache_id",)
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    cache_id: int
    def __init__(self, cache_id: _Optional[int] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("label",)
    LABEL_FIELD_NUMBER: _ClassVar[int]
    label: str
    def __init__(self, label: _Optional[str] = ...) -> None: ...

class DropCheckpoint(_message.Message):
    __slots__ = ("label",)
    LABEL_FIELD_NUMBER: _ClassVar[int]
    label: str
    def __init__(self, label: _Optional[str] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("step", "optimizer_step", "zero_grad", "discard_step", "gradient_norm", "cache_reorder", "cache_crop", "cache_release", "checkpoint", "drop_checkpoint")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STEP_FIELD_NUMBER: _ClassVar[int]
    ZERO_GRAD_FIELD_NUMBER: _ClassVar[int]
    DISCARD_STEP_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    CACHE_REORDER_FIELD_NUMBER: _ClassVar[int]
    CACHE_CROP_FIELD_NUMBER: _ClassVar[int]
    CACHE_RELEASE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DROP_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    step: int
    optimizer_step: OptimizerStep
    zero_grad: ZeroGrad
    discard_step: DiscardStep
    gradient_norm: GradientNorm
    cache_reorder: CacheReorder
    cache_crop: CacheCrop
    cache_release: CacheRelease
    checkpoint: Checkpoint
    drop_checkpoint: DropCheckpoint
    def __init__(self, step: _Optional[int] = ..., optimizer_step: _Optional[_Union[OptimizerStep, _Mapping]] = ..., zero_grad: _Optional[_Union[ZeroGrad, _Mapping]] = ..., discard_step: _Optional[_Union[DiscardStep, _Mapping]] = ..., gradient_norm: _Optional[_Union[GradientNorm, _Mapping]] = ..., cache_reorder: _Optional[_Union[CacheReorder, _Mapping]] = ..., cache_crop: _Optional[_Union[CacheCrop, _Mapping]] = ..., cache_release: _Optional[_Union[CacheRelease, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., drop_checkpoint: _Optional[_Union[DropCheckpoint, _Mapping]] = ...) -> None: ...

class ControlResult(_message.Message):
    __slots__ = ("step", "squared_gradient_norm", "checkpoint_digest")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SQUARED_GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    step: int
    squared_gradient_norm: float
    checkpoint_digest: str
    def __init__(self, step: _Optional[int] = ..., squared_gradient_norm: _Optional[float] = ..., checkpoint_digest: _Optional[str] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("last_step",)
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    last_step: int
    def __init__(self, last_step: _Optional[int] = ...) -> None: ...

class ExchangeRequest(_message.Message):
    __slots__ = ("attach", "frame", "control")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    frame: Frame
    control: Control
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., control: _Optional[_Union[Control, _Mapping]] = ...) -> None: ...

class ExchangeResponse(_message.Message):
    __slots__ = ("attached", "frame", "control_result")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CONTROL_RESULT_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    frame: Frame
    control_result: ControlResult
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., control_result: _Optional[_Union[ControlResult, _Mapping]] = ...) -> None: ...
