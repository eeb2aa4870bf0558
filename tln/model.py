"""The split model as an ordinary transformers model.

    head -> pipeline.protect -> crossing -> pipeline.restore -> tail -> lm_head

`generate()`, `Trainer`, PEFT (on head and tail) and evaluation harnesses work on it unchanged: it is a
PreTrainedModel with generation. With an empty pipeline it computes what the unsplit model computes.

Only rows cross. Masks, positions and tokens stay: the untrusted node gets the lengths of padded rows and counts
positions itself. So what it could not know is refused: masks with holes, positions that are not counted along the
row, embeddings as input, and the hidden states and attentions of the delegated layers as output.

Legend: B sequences, T positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from splitwire.backbone.parts import HeadModel, TailModel
from splitwire.errors import SettingsError
from tln.cache import SplitCache
from tln.context import StepContext, row_lengths_of
from tln.crossing import Crossing
from tln.generation import SplitGenerationMixin
from tln.model_inputs import check_length, check_positions, past_length, refuse_outputs
from tln.pipeline import FramePipeline
from tln.prefill import DEFAULT_PREFILL_POSITIONS, Part, parts_of
from tln.stack_settings import StackSettings
from tln.texts import TextLog
from tln.told import PassTruth, pass_truth


class SplitModelForCausalLM(PreTrainedModel, SplitGenerationMixin):  # type: ignore[no-untyped-call]
    """Head and tail of a causal language model around a crossing. Lives on the trusted node."""

    main_input_name = "input_ids"
    base_model_prefix = ""
    supports_gradient_checkpointing = False  # recomputing would cross twice
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(
        self,
        config: Any,
        head: HeadModel,
        tail: TailModel,
        crossing: Crossing,
        *,
        pipeline: FramePipeline | None = None,
        generation_config: GenerationConfig | None = None,
        prefill_positions: int = DEFAULT_PREFILL_POSITIONS,
        texts: TextLog | None = None,
        limits: StackSettings | None = None,
    ) -> None:
        """`config` is the whole model's. The parts keep their own configs, cut to their layers.

        With a cache, a pass of more than `prefill_positions` goes through in parts (tln.prefill); 0 leaves it whole.
        `texts` is told of prompts and answers. `generate` keeps to the caches that `limits` asks of the session.
        """
        super().__init__(config)
        self.head = head
        self.pipeline = FramePipeline() if pipeline is None else pipeline
        self.tail = tail
        # Of size 0: gives optimizers and autograd something to hold when all that is trained is on the other side.
        self.remote_anchor = nn.Parameter(torch.zeros(0))
        self.crossing = crossing
        self.prefill_positions = prefill_positions
        self.texts = texts
        self._limits = limits
        self._own_cache: SplitCache | None = None
        if tail.lm_head.weight is head.embedding.weight:
            self._tied_weights_keys = {"tail.lm_head.weight": f"head.body.{head.family.embedding}.weight"}
        with no_init_weights():
            self.post_init()  # type: ignore[no-untyped-call]
        if generation_config is not None:
            self.generation_config = generation_config

    def new_cache(self) -> SplitCache:
        """An empty cache for `forward(cache=...)` and `generate(cache=...)`."""
        sliding = "sliding_attention" in (getattr(self.config, "layer_types", None) or ())
        return SplitCache(self.head.new_cache(), self.tail.new_cache(), self.crossing, is_croppable=not sliding)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: SplitCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        documents: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, T, V] of token ids [B, T]; with labels [B, T] (as transformers has them) also the loss.

        `documents` [B] are indices into the truth file's documents table. A cache means evaluation: nothing is trained
        through it.
        """
        if input_ids is None:
            raise SettingsError("input_ids is missing", remedy="pass token ids; embeddings as input cannot be split")
        refuse_outputs(kwargs)
        if cache is None and use_cache:
            cache = self.new_cache()
        parts = self._parts(input_ids, attention_mask, position_ids, cache)
        told = self._told(input_ids, attention_mask, cache, labels, documents)
        if not parts[0].row_lengths and not (cache is not None and cache.has_padding):
            attention_mask = None  # nothing is masked: each part would find that out again at every step
        past = past_length(cache)
        normed_parts = []
        for part in parts:
            rows = slice(part.start, part.end)
            normed_parts.append(
                self._through(
                    input_ids[:, rows],
                    None if attention_mask is None else attention_mask[:, : past + part.end],
                    None if position_ids is None else position_ids[..., rows],
                    cache,
                    self._context(part, cache, told),
                )
            )
        normed = normed_parts[0] if len(normed_parts) == 1 else torch.cat(normed_parts, dim=1)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.tail.logits(normed[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding, which is here."""
        return self.head.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the token embedding."""
        setattr(self.head.body, self.head.family.embedding, value)

    def get_output_embeddings(self) -> nn.Module:
        """lm_head, which is here."""
        return self.tail.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replaces lm_head."""
        self.tail.lm_head = value

    def _through(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: SplitCache | None,
        context: StepContext,
    ) -> torch.Tensor:
        """Normed hidden states [B, T, H] after all three parts."""
        head_cache, tail_cache = (None, None) if cache is None else (cache.head, cache.tail)
        if cache is not None:
            cache.begin_pass()
        hidden_BTH = self.head(input_ids, attention_mask, position_ids, head_cache)
        if context.mode == "train" and not hidden_BTH.requires_grad:
            hidden_BTH = hidden_BTH + self.remote_anchor.sum()
        frame = self.pipeline.protect(hidden_BTH, context)
        returned = self.crossing.cross(frame.rows, context, frame.truth)
        restored_BTH = self.pipeline.restore(returned, context)
        normed_BTH = self.tail(restored_BTH, attention_mask, position_ids, tail_cache)
        if cache is not None:
            cache.end_pass()
        return cast("torch.Tensor", normed_BTH)

    def _parts(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: SplitCache | None,
    ) -> list[Part]:
        """The parts in which this pass crosses. Everything is checked here, before a step is reserved or rows exist."""
        past, (num, num_new) = past_length(cache), input_ids.shape
        check_length(past, num_new, int(self.config.max_position_embeddings))
        if position_ids is not None:
            check_positions(position_ids, attention_mask, past)
        if cache is None or past == 0:
            lengths, side = row_lengths_of(attention_mask)
        else:
            cache.check_new_positions(attention_mask, num_new)
            lengths, side = (), ""
        if cache is not None and lengths:
            cache.has_padding = True
        if cache is None or not self.prefill_positions:
            return parts_of(num_new, lengths, side, 0)
        fitting = self.crossing.max_positions(num, int(self.config.hidden_size))
        return parts_of(num_new, lengths, side, min(self.prefill_positions, fitting))

    def _told(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        cache: SplitCache | None,
        labels: torch.Tensor | None,
        documents: torch.Tensor | None,
    ) -> PassTruth | None:
        """The truth about the rows, which costs more than a decode step may: made only when somebody reads it."""
        if not self.crossing.forward_listeners and not len(self.pipeline.mechanisms):
            return None
        if documents is None and cache is None and self.texts is not None:
            # a pass without a cache is all of its texts
            documents = self.texts.begin(len(input_ids))
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            self.texts.end_batch(documents, mask, input_ids)
        return pass_truth(input_ids, attention_mask, past_length(cache), labels, documents)

    def _context(self, part: Part, cache: SplitCache | None, told: PassTruth | None) -> StepContext:
        """What this part of a pass is, under a step of its own."""
        trains = torch.is_grad_enabled() and self.crossing.is_training
        context = StepContext(
            step=self.crossing.reserve_step(),
            mode="cached" if cache is not None else "train" if trains else "evaluate",
            cache_id=0 if cache is None else cache.cache_id,
            row_lengths=part.row_lengths,
            padding_side=part.padding_side,
        )
        if told is not None:
            told.tell(context, part)
        return context
