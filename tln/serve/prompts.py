"""From bodies to tokens, and whether they fit: one text for each prompt and each of its n choices.

Tokenizing happens on one thread, since a tokenizer is not safe to share while its settings change.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import jinja2

from tln.serve.errors import ApiError, bad_request
from tln.serve.sampling import Sampling
from tln.serve.schema import ChatBody, CompletionBody
from tln.serve.settings import ServeSettings

_SEED_BITS = 63


@dataclass(frozen=True)
class TextRequest:
    """One text to be continued. Trusted node only."""

    prompt: tuple[int, ...]
    max_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling


@dataclass(frozen=True)
class Prompts:
    """Makes texts of bodies. `num_positions` is the context window, `vocabulary_size` that of the model."""

    tokenizer: Any
    settings: ServeSettings
    num_positions: int
    vocabulary_size: int

    def of_chat(self, body: ChatBody) -> list[TextRequest]:
        """n texts of a conversation, in the model's chat template. ApiError when it has none, or refuses."""
        if not self.tokenizer.chat_template:
            raise bad_request("The model has no chat template. Use /v1/completions.", code="no_chat_template")
        messages = [message.plain() for message in body.messages]
        try:
            tokens = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            reason = f": {error}" if isinstance(error, jinja2.TemplateError) else ""
            raise bad_request(f"The model's chat template refuses the messages{reason}.", param="messages") from None
        return self._texts([list(tokens["input_ids"])], body, "messages")

    def of_completion(self, body: CompletionBody) -> list[TextRequest]:
        """n texts for each prompt, in order of the prompts."""
        prompts = [self.tokenizer(given)["input_ids"] if isinstance(given, str) else given for given in body.prompts]
        return self._texts(prompts, body, "prompt")

    def _texts(self, prompts: list[list[int]], body: ChatBody | CompletionBody, param: str) -> list[TextRequest]:
        num_choices = body.n or 1
        if len(prompts) * num_choices > self.settings.max_choices:
            raise bad_request(
                f"{len(prompts)} prompts with n = {num_choices} exceed {self.settings.max_choices} choices a request.",
                param="n",
            )
        seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed
        return [
            TextRequest(
                tuple(prompt),
                self._num_new(prompt, body, param),
                body.stops,
                Sampling(
                    temperature=1.0 if body.temperature is None else body.temperature,
                    top_p=1.0 if body.top_p is None else body.top_p,
                    seed=(seed + choice) % (1 << _SEED_BITS),
                    num_logprobs=body.num_logprobs,
                ),
            )
            for prompt in prompts
            for choice in range(num_choices)
        ]

    def _num_new(self, prompt: list[int], body: ChatBody | CompletionBody, param: str) -> int:
        """Most new tokens of a prompt; what the request does not ask for is cut to the room there is."""
        if not prompt:
            raise bad_request("The prompt has no token.", param=param)
        if max(prompt) >= self.vocabulary_size:
            raise bad_request(f"The prompt has a token beyond the vocabulary of {self.vocabulary_size}.", param=param)
        room = self.num_positions - len(prompt)
        asked = body.asked_tokens
        if room < 1 or (asked is not None and asked > room):
            raise self._too_long(len(prompt), asked, param)
        return min(self.settings.default_max_tokens, room) if asked is None else asked

    def _too_long(self, num_prompt: int, asked: int | None, param: str) -> ApiError:
        more = "" if asked is None else f" and {asked} new ones"
        return bad_request(
            f"This model's maximum context length is {self.num_positions} tokens, and the request has {num_prompt} "
            f"tokens in the {param}{more}.",
            param=param,
            code="context_length_exceeded",
        )
