"""The public model behind a capture: what an untrusted node can load as well, to finish or to imitate what it computed.

`find_public_model` looks where the plan says, else where the bundle's settings and the truth say that the model was
loaded from, else at the embedded model; a candidate counts only when the fingerprint of its delegated layers is the one
that crossed in the handshake, or that the trusted node sealed where a handshake names no model (gram). What a bundle
names is used only when it lies on this machine: an audit fetches nothing that its plan does not name.

Shapes: T positions of one text, H hidden width, C classes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from google.protobuf import json_format

from auditor.arrays import Integers
from auditor.evidence.frames import opening
from auditor.evidence.material import Material
from auditor.evidence.sources import FrameSource, TruthSource
from auditor.plan import ResponseSettings
from splitwire.backbone import (
    EMBEDDED_MODEL,
    HeadModel,
    MiddleModel,
    ModelSettings,
    TailModel,
    identity,
    load_head,
    load_middle,
    load_tail,
)
from splitwire.errors import ModelError
from splitwire.v1 import channels_pb2, stack_pb2

_BATCH_ROWS = 1024


class PublicModel:
    """Parts of a public model, loaded when they are asked for."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self._returned: dict[bytes, torch.Tensor] = {}
        self._last_hidden: dict[bytes, torch.Tensor] = {}
        self._one_at_a_time = threading.RLock()  # arms that are fitted side by side ask for the same texts

    @cached_property
    def head(self) -> HeadModel:
        """Embedding and layers up to the cut."""
        return load_head(self.settings)

    @cached_property
    def middle(self) -> MiddleModel:
        """The delegated layers as published."""
        return load_middle(self.settings)

    @cached_property
    def tail(self) -> TailModel:
        """Layers after the delegated ones, final norm and lm_head."""
        return load_tail(self.settings)

    @cached_property
    def token_rows(self) -> torch.Tensor:
        """Rows [V, H] at the first cut of every token of the vocabulary, each behind the model's beginning token."""
        config, head = self.head.config, self.head
        begins = next((token for token in (config.bos_token_id, config.eos_token_id, 0) if isinstance(token, int)), 0)
        first = torch.tensor([[begins]], device=head.device)
        rows = []
        for tokens in torch.split(torch.arange(head.embedding.num_embeddings, device=head.device), _BATCH_ROWS):
            with torch.no_grad():
                cache = head.new_cache()
                head(first, cache=cache)
                cache.batch_repeat_interleave(len(tokens))
                rows.append(head(tokens[:, None], cache=cache)[:, 0].float())
        return torch.cat(rows)

    @property
    def width(self) -> int:
        """H."""
        return self.tail.hidden_width

    def returned_rows(self, texts: Sequence[Integers]) -> list[torch.Tensor]:
        """Rows [T, H] that the delegated layers would return for each text of token ids [T]; each text once."""
        with self._one_at_a_time:
            return _each_once(texts, self._returned, self._return)

    def finish(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Normed hidden states [T, H] of the public tail over each sequence of returned rows [T, H]."""
        return _by_length(rows, self.tail)

    def last_hidden(self, texts: Sequence[Integers]) -> list[torch.Tensor]:
        """Normed last hidden states [T, H] of the uncut public model on texts of token ids [T]; each text once."""
        with self._one_at_a_time:
            return _each_once(texts, self._last_hidden, lambda new: self.finish(self.returned_rows(new)))

    def _return(self, texts: Sequence[Integers]) -> list[torch.Tensor]:
        ids = [torch.from_numpy(text) for text in texts]
        return _by_length(ids, lambda ids_BT: self.middle(self.head(ids_BT)))

    @torch.no_grad()
    def log_probabilities(self, normed: torch.Tensor, classes: Integers) -> torch.Tensor:
        """Log-probabilities [n, C] over these tokens alone, of normed hidden states [n, H]."""
        cap = getattr(self.tail.config, "final_logit_softcapping", None)
        logits = normed @ self.tail.lm_head.weight[torch.from_numpy(classes)].T
        logits = logits if cap is None else torch.tanh(logits / cap) * cap
        return logits.log_softmax(-1)


def find_public_model(material: Material, settings: ResponseSettings) -> tuple[PublicModel | None, str]:
    """The model whose delegated layers crossed in the handshake, or None and why there is none."""
    wanted = _crossed_identity(material.sources) or _sealed_identity(material.truths)
    if wanted is None:
        return None, "neither the opening of a session nor the truth tells which layers of which model were delegated"
    reasons = []
    for source, revision in _candidates(material, settings):
        if not settings.source and source != EMBEDDED_MODEL and not Path(source).exists():
            reasons.append(f"{source}, which the bundle names, is not on this machine: name the model in the plan")
            continue
        model = ModelSettings(
            source=source, revision=revision, first_layer=wanted.first_layer, last_layer=wanted.last_layer
        )
        try:
            if identity(model) == wanted:
                return PublicModel(model), ""
            reasons.append(f"{source} has other weights than the model that was used")
        except ModelError as error:
            reasons.append(error.message)
    told = "; ".join(dict.fromkeys(reasons))
    return None, told or "nothing says which public model was used: name it in the plan as response.source"


def _crossed_identity(sources: Sequence[FrameSource]) -> stack_pb2.ModelIdentity | None:
    """What the first session that was opened said of the model."""
    for source in sources:
        for record in source.messages(channels_pb2.HOP_CONTROL):
            request = opening(record)
            if request is not None and request.HasField("model") and request.model.fingerprint:
                return request.model
    return None


def _sealed_identity(truths: Sequence[TruthSource]) -> stack_pb2.ModelIdentity | None:
    """What the trusted node sealed of the model: the opening of a gram session names none."""
    for truth in truths:
        told = getattr(truth, "facts", {}).get("delegated")
        with contextlib.suppress(json_format.ParseError):
            if told:
                return json_format.ParseDict(told, stack_pb2.ModelIdentity())
    return None


def _candidates(material: Material, settings: ResponseSettings) -> Iterator[tuple[str, str]]:
    """Source and revision of what may be the model: the plan's alone, when it names one."""
    if settings.source:
        yield settings.source, settings.revision
        return
    named = [_setting(getattr(source, "settings", {}), "settings", "model", "source") for source in material.sources]
    named += [_setting(getattr(truth, "facts", {}), "model") for truth in material.truths]
    for source in dict.fromkeys(named):
        if isinstance(source, str) and source and source != EMBEDDED_MODEL:
            yield source, ""
    yield EMBEDDED_MODEL, ""


def _setting(tree: Any, *path: str) -> Any:
    """What lies at this place of a tree of settings, or None."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _each_once(
    texts: Sequence[Integers],
    known: dict[bytes, torch.Tensor],
    compute: Callable[[Sequence[Integers]], list[torch.Tensor]],
) -> list[torch.Tensor]:
    """What is computed of every text; what is not `known` yet is computed together, and known from then on."""
    new = {text.tobytes(): text for text in texts if text.tobytes() not in known}
    known.update(zip(new, compute(list(new.values())), strict=True))
    return [known[text.tobytes()] for text in texts]


@torch.no_grad()
def _by_length(
    sequences: Sequence[torch.Tensor], compute: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """The computation on every sequence; sequences of one length go together."""
    results: dict[int, torch.Tensor] = {}
    by_length: dict[int, list[int]] = {}
    for number, sequence in enumerate(sequences):
        by_length.setdefault(len(sequence), []).append(number)
    for length, numbers in by_length.items():
        for batch in torch.split(torch.tensor(numbers), max(1, _BATCH_ROWS // length)):
            outputs = compute(torch.stack([sequences[number] for number in batch.tolist()]))
            results.update(zip(batch.tolist(), outputs, strict=True))
    return [results[number] for number in range(len(sequences))]
