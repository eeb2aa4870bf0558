"""`generate` of transformers over a crossing: the cache that it gets, and what is told of prompts and answers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin

from splitwire.errors import SettingsError
from tln.cache import SplitCache
from tln.crossing import Crossing
from tln.model_inputs import past_length
from tln.stack_settings import StackSettings
from tln.texts import TextLog


class SplitGenerationMixin(GenerationMixin):
    """GenerationMixin for a model whose cache is in three places. The model sets what is declared here."""

    crossing: Crossing
    generation_config: GenerationConfig
    texts: TextLog | None
    _limits: StackSettings | None
    _own_cache: SplitCache | None

    def new_cache(self) -> SplitCache:
        """An empty cache of the model."""
        raise NotImplementedError

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. What the call leaves unused on the other side is freed before it returns.

        With `texts`, each prompt is a document of the truth, and its answer is told at the end.
        """
        inputs = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        try:
            if self.texts is not None and inputs is not None and kwargs.get("documents") is None:
                documents = self.texts.begin(len(inputs))
                output = super().generate(*args, **kwargs, documents=documents)
                settings = kwargs.get("generation_config") or self.generation_config
                self.texts.end_generation(documents, inputs, output, {**settings.to_dict(), **kwargs})
            else:
                output = super().generate(*args, **kwargs)
        finally:
            own, self._own_cache = self._own_cache, None
        if own is not None and isinstance(output, torch.Tensor):
            own.release()  # now, and not when the last frame that an error has seen lets go of it
        self.crossing.flush()
        return output

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,  # noqa: ARG002 - transformers' signature
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        """Gives `generate` a cache in three places; the other kinds of transformers know of one only.

        SettingsError, before anything crosses, for one that the session would refuse in the middle.
        """
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise SettingsError(
                f"cache_implementation {generation_config.cache_implementation!r} cannot be split",
                remedy="leave it out; the cache of the split model grows as needed",
            )
        given = model_kwargs.get("cache")
        if given is not None:
            past_length(given)
            given._is_user_defined = True  # noqa: SLF001 - how transformers marks a cache that outlives the call
        elif generation_config.use_cache is not False:
            times = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
            self._check_limits(batch_size * times, max_cache_length)
            model_kwargs["cache"] = self._own_cache = self.new_cache()
            if generation_config.is_assistant:
                model_kwargs["cache"].activate_past_recording()
        return True

    def _check_limits(self, num_sequences: int, num_positions: int) -> None:
        if self._limits is None:
            return
        for name, needed, most in (
            ("max_cache_sequences", num_sequences, self._limits.max_cache_sequences),
            ("max_cache_positions", num_positions, self._limits.max_cache_positions),
        ):
            if needed > most:
                raise SettingsError(
                    f"the generation may take {needed} of stack.{name}, {most}",
                    remedy=f"lower max_new_tokens or the batch, or raise stack.{name}",
                )
