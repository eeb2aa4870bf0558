"""Loads the parts of a model, each with its own tensors only, and the whole model for comparison and preparation.

No code of a checkpoint is ever run. A part is built without memory for its parameters and then given the tensors it
owns, one by one, from the checkpoint. What it does not own is removed before that, so it is never read. Refused with
ModelError: a tensor of another shape than the config says, a parameter that the checkpoint does not have, a device
that is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from splitwire.backbone.checkpoint import Checkpoint, open_checkpoint
from splitwire.backbone.families import FAMILIES, Family, checkpoint_prefix, family_of, slice_config
from splitwire.backbone.parts import HeadModel, MiddleModel, TailModel, ZeroPositions
from splitwire.backbone.settings import ModelSettings
from splitwire.errors import ModelError

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_LM_HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight")


def load_config(settings: ModelSettings) -> Any:
    """The text config of the whole model; ModelError when its family cannot be cut."""
    return _config_of(open_checkpoint(settings).folder)


def load_tokenizer(settings: ModelSettings) -> Any:
    """The model's tokenizer; one without a padding token pads with its end token."""
    folder = open_checkpoint(settings).folder
    _config_of(folder)  # the tokenizer's reader looks into it too, and would blame the vocabulary
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - its readers raise whatever a broken file makes them
        raise ModelError(
            f"tokenizer in {folder} cannot be read ({type(error).__name__})",
            remedy="the folder needs tokenizer.json or the family's vocabulary files",
        ) from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_generation_config(settings: ModelSettings) -> Any:
    """What the model's authors set for generation, else what follows from its config."""
    folder = open_checkpoint(settings).folder
    if (folder / "generation_config.json").is_file():
        try:
            return GenerationConfig.from_pretrained(folder)
        except Exception as error:  # noqa: BLE001 - its reader raises whatever a broken file makes it
            raise ModelError(
                f"{folder / 'generation_config.json'} cannot be read ({type(error).__name__})",
                remedy="restore it, or remove it to use what follows from config.json",
            ) from None
    return GenerationConfig.from_model_config(_config_of(folder))


def load_head(settings: ModelSettings) -> HeadModel:
    """Embedding and layers [0, first_layer)."""
    loader = _Loader(settings)
    body = loader.body(0, loader.first, norm=False, embedding=True)
    return HeadModel(body, loader.family, 0, loader.first).eval()


def load_middle(settings: ModelSettings) -> MiddleModel:
    """The delegated layers [first_layer, last_layer), and nothing else."""
    loader = _Loader(settings)
    body = loader.body(loader.first, loader.last, norm=False, embedding=False)
    return MiddleModel(body, loader.family, loader.first, loader.last).eval()


def load_tail(settings: ModelSettings) -> TailModel:
    """Layers [last_layer, N), the final norm, and lm_head (the embedding's weights when the model ties them)."""
    loader = _Loader(settings)
    return loader.tail(loader.lm_head())


def load_head_and_tail(settings: ModelSettings) -> tuple[HeadModel, TailModel]:
    """Both trusted parts; with tied weights lm_head and embedding are one parameter, as in the whole model."""
    head = load_head(settings)
    loader = _Loader(settings)
    tied = getattr(loader.config, "tie_word_embeddings", False)
    return head, loader.tail(_linear(head.embedding.weight) if tied else loader.lm_head())


def load_whole(settings: ModelSettings) -> Any:
    """The uncut model as the family's causal class, in eval mode, for preparation and comparison."""
    loader = _Loader(settings)
    loader.config.dtype = loader.dtype
    with init_empty_weights(include_buffers=False):
        model = loader.family.causal_class(loader.config)
    loader.fill(getattr(model, loader.family.body_attribute), 0)
    embedding = model.get_input_embeddings().weight
    tied = getattr(loader.config, "tie_word_embeddings", False)
    model.lm_head = _linear(embedding) if tied else loader.lm_head()
    model.generation_config = load_generation_config(settings)
    return model.to(loader.device).eval()


class _Loader:
    """What loading one part needs: the open checkpoint, the family, the cut, dtype and device."""

    def __init__(self, settings: ModelSettings) -> None:
        self.checkpoint: Checkpoint = open_checkpoint(settings)
        self.config = _config_of(self.checkpoint.folder)
        self.family: Family = family_of(self.config)
        self.num_layers = int(self.config.num_hidden_layers)
        self.first, self.last = settings.layer_range(self.num_layers)
        self.prefix = checkpoint_prefix(self.family, self.checkpoint.tensors)
        self._check_depth()
        self.dtype = TORCH_DTYPES[settings.dtype]
        self.device = usable_device(settings.device)

    def _check_depth(self) -> None:
        """Before anything of the size that the config claims is built."""
        start = f"{self.prefix}{self.family.layers}."
        numbers = (
            name.removeprefix(start).partition(".")[0] for name in self.checkpoint.tensors if name.startswith(start)
        )
        stored = 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)
        if stored != self.num_layers:
            raise ModelError(
                f"the config in {self.checkpoint.folder} says {self.num_layers} layers, the weights have {stored}",
                remedy="check that config.json belongs to these weights, and that the download is complete",
            )

    def body(self, first: int, last: int, *, norm: bool, embedding: bool) -> Any:
        """The base model with layers [first, last), without what it does not own, filled from the checkpoint."""
        config = slice_config(self.config, first, last)
        config.dtype = self.dtype
        with init_empty_weights(include_buffers=False):
            body = self.family.body_class(config)
        if not norm:
            setattr(body, self.family.norm, nn.Identity())
        if not embedding:
            self._remove_embedding(body)
        self.fill(body, first)
        return body.to(self.device)

    def tail(self, lm_head: nn.Linear) -> TailModel:
        """The tail around a given lm_head."""
        body = self.body(self.last, self.num_layers, norm=True, embedding=False)
        return TailModel(body, self.family, self.last, self.num_layers, lm_head).eval()

    def lm_head(self) -> nn.Linear:
        """lm_head as stored, or the embedding's weights when the model ties them."""
        if getattr(self.config, "tie_word_embeddings", False):
            name = f"{self.prefix}{self.family.embedding}.weight"
        else:
            name = next((name for name in _LM_HEAD_NAMES if name in self.checkpoint.tensors), _LM_HEAD_NAMES[0])
        (_, weight), *_ = self.checkpoint.read([name], self.dtype)
        return _linear(weight.to(self.device))

    def fill(self, body: nn.Module, first: int) -> None:
        """Gives every parameter of `body` its tensor; the body's layer 0 is layer `first` of the checkpoint."""
        names = {self._stored_name(name, first): name for name in body.state_dict()}
        for stored, tensor in self.checkpoint.read(names, self.dtype):
            _assign(body, names[stored], tensor)

    def _stored_name(self, name: str, first: int) -> str:
        start = f"{self.family.layers}."
        if name.startswith(start):
            number, rest = name.removeprefix(start).split(".", 1)
            name = f"{start}{int(number) + first}.{rest}"
        return f"{self.prefix}{name}"

    def _remove_embedding(self, body: Any) -> None:
        setattr(body, self.family.embedding, None)
        if self.family.position_embedding:
            setattr(body, self.family.position_embedding, ZeroPositions())
            body.drop = nn.Identity()


def _config_of(folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config(decoder=True)
    except Exception as error:  # noqa: BLE001 - its reader raises whatever a broken file makes it
        raise ModelError(
            f"model config in {folder} cannot be read ({type(error).__name__})",
            remedy=f"the folder needs a config.json of a supported family: {', '.join(sorted(FAMILIES))}",
        ) from None
    family_of(config)
    return config


def _assign(body: nn.Module, name: str, tensor: torch.Tensor) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner = body.get_submodule(owner_name)
    current = getattr(owner, leaf)
    if current.shape != tensor.shape:
        raise ModelError(
            f"tensor {name} has shape {tuple(tensor.shape)}, the config says {tuple(current.shape)}",
            remedy="check that config.json belongs to these weights",
        )
    if isinstance(current, nn.Parameter):
        setattr(owner, leaf, nn.Parameter(tensor))
    else:
        owner.register_buffer(leaf, tensor)


def _linear(weight: torch.Tensor) -> nn.Linear:
    """A linear layer without bias around an existing weight [V, H], shared when it is a parameter."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
    return layer


def usable_device(name: str) -> torch.device:
    """The device, after a tensor was made on it; ModelError when there is none of that name here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device {name!r} is not a device", remedy="use cpu, cuda or cuda:0") from None
    if device.type == "meta":
        raise ModelError(f"device {name!r} holds no values", remedy="use cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r} is not available here", remedy="use cpu, or install a CUDA build of torch")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ModelError(
            f"device {name!r} is not available here", remedy="use cpu, or a device of this machine"
        ) from None
    return device
