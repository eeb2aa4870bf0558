"""An inverter that writes: a projection into an encoder-decoder, trained to write the text that rows came from.

With `model` it is a published one (T5 in the papers), read from a folder or a hub id; a plan that names a hub id allows
the download. Without, it is a small one made from nothing with positions by sines, which needs far more text than a
published one to write well, and writes only tokens of the texts that it learned from.

Shapes: B texts, T positions, F features of a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.parts.each_text import Guess
from auditor.attacks.inversion.parts.public_rows import Standard, standard_of
from auditor.attacks.inversion.parts.writing import ForeignWriting, OwnWriting, Writing
from auditor.plan import Count
from auditor.public_model import PublicModel
from splitwire.backbone import load_tokenizer
from splitwire.errors import ModelError

_NO_LABEL = -100
_LAYERS, _HEADS = 2, 4


@dataclass(frozen=True, eq=False)
class Example:
    """Features [T, F] of the rows of one text, and its tokens [T]."""

    features: torch.Tensor
    tokens: torch.Tensor


@dataclass(frozen=True, eq=False)
class Writer:
    """A trained encoder-decoder with what stands before and after it, and how long its training took."""

    network: Any
    projection: nn.Linear
    standard: Standard
    writing: Writing
    max_length: int
    fit_seconds: float

    @torch.no_grad()
    def invert(self, features_TF: torch.Tensor) -> Guess:
        """What it writes greedily for these rows, as tokens of T positions and the one that follows."""
        inputs_1TD = self.projection(self.standard(features_TF))[None]
        written = self.network.generate(
            inputs_embeds=inputs_1TD,
            attention_mask=inputs_1TD.new_ones(1, len(features_TF), dtype=torch.long),
            max_new_tokens=self.max_length,
            do_sample=False,
            num_beams=1,
        )
        tokens = torch.full((len(features_TF) + 1,), NO_GUESS)
        found = torch.tensor(self.writing.decode(written[0, 1:].tolist()), dtype=torch.long)[: len(tokens)]
        tokens[: len(found)] = found
        return Guess(tokens[:-1], int(tokens[-1]), details={"num_written": len(found)})


@dataclass(frozen=True)
class WriterTraining:
    """How an encoder-decoder is trained. Attacks that use one inherit these parameters."""

    model: str = ""
    """Folder or hub id of an encoder-decoder, such as google-t5/t5-base. Empty: see the attack."""
    max_length: Count = 256
    """Most tokens that it writes."""
    writer_learning_rate: PositiveFloat = 2e-4
    """Of AdamW."""
    writer_epochs: Count = 10
    writer_batch_texts: Count = 8
    writer_width: Count = 256
    """Of an encoder-decoder made from nothing; a multiple of 8."""

    def fit_writer(
        self, examples: Sequence[Example], public: PublicModel, seed: int, tell: Callable[[int, int], None]
    ) -> Writer:
        """Trains it on these texts, the dropout of a published model included."""
        began = time.perf_counter()
        device = examples[0].features.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            network, writing = self._network(examples, public)
            network.to(device)
            standard = standard_of(torch.cat([example.features for example in examples])[None])
            projection = nn.Linear(examples[0].features.shape[1], network.get_input_embeddings().embedding_dim)
            projection.to(device)
            self._train_writer(network.train(), projection, standard, writing, examples, tell)
        network.eval()
        return Writer(network, projection, standard, writing, self.max_length, time.perf_counter() - began)

    def _network(self, examples: Sequence[Example], public: PublicModel) -> tuple[Any, Writing]:
        if not self.model:
            own = OwnWriting([example.tokens for example in examples])
            longest = max(len(example.tokens) for example in examples)
            return _from_nothing(own, self.writer_width, max(longest, self.max_length) + 1), own
        network, tokenizer = _published(self.model)
        end = network.config.eos_token_id
        return network, ForeignWriting(load_tokenizer(public.settings), tokenizer, end, self.max_length)

    def _train_writer(
        self,
        network: Any,
        projection: nn.Linear,
        standard: Standard,
        writing: Writing,
        examples: Sequence[Example],
        tell: Callable[[int, int], None],
    ) -> None:
        written = [torch.tensor(writing.encode(example.tokens)) for example in examples]
        parameters = [*network.parameters(), *projection.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=self.writer_learning_rate)
        for epoch in range(self.writer_epochs):
            for batch in torch.split(torch.randperm(len(examples)), self.writer_batch_texts):
                chosen = batch.tolist()
                rows = [projection(standard(examples[number].features)) for number in chosen]
                labels_BT = pad_sequence([written[number] for number in chosen], True, _NO_LABEL)
                mask = [torch.ones(len(row), dtype=torch.long) for row in rows]
                output = network(
                    inputs_embeds=pad_sequence(rows, batch_first=True),
                    attention_mask=pad_sequence(mask, batch_first=True).to(rows[0].device),
                    labels=labels_BT.to(rows[0].device),
                )
                optimizer.zero_grad(set_to_none=True)
                output.loss.backward()
                optimizer.step()
            tell(epoch + 1, self.writer_epochs)


def _from_nothing(writing: OwnWriting, width: int, positions: int) -> Any:
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - only where one is made

    config = MarianConfig(
        vocab_size=writing.size,
        d_model=width,
        encoder_layers=_LAYERS,
        decoder_layers=_LAYERS,
        encoder_attention_heads=_HEADS,
        decoder_attention_heads=_HEADS,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_position_embeddings=positions,
        dropout=0.0,
        pad_token_id=writing.pad,
        eos_token_id=writing.end,
        forced_eos_token_id=None,
        decoder_start_token_id=writing.start,
    )
    return MarianMTModel(config)


def _published(source: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer  # noqa: PLC0415 - only where one is named

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        network = AutoModelForSeq2SeqLM.from_pretrained(source, trust_remote_code=False, use_safetensors=True)
    except Exception as error:  # noqa: BLE001 - its readers raise whatever a broken folder or a lost hub makes them
        raise ModelError(
            f"encoder-decoder {source} cannot be loaded ({type(error).__name__})",
            remedy="give a folder or a hub id with config.json, safetensors weights and a tokenizer, such as T5's",
        ) from None
    return network, tokenizer
