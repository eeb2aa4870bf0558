"""The bodies of requests: what is understood, what is taken without effect, and what is refused.

A field that this server does not know is refused, since ignoring it would be to answer another question. Fields that
only label a request have no effect. Fields of features that are not there are accepted with the value that means
"off". Types are strict: "5" is not 5.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tln.serve.errors import ApiError, bad_request

_Text = Annotated[str, Field(min_length=1)]
_Token = Annotated[int, Field(ge=0)]
_Texts = Annotated[list[_Text], Field(min_length=1)]
_Tokens = Annotated[list[_Token], Field(min_length=1)]
_TokenLists = Annotated[list[_Tokens], Field(min_length=1)]

MAX_STOPS = 16
MAX_CHAT_LOGPROBS = 20
MAX_TEXT_LOGPROBS = 5

_OFF: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Features that are not there, and the values that ask for none of them; null always does."""
_SHAPES = {
    "prompt": "a text, a list of texts, a list of tokens or a list of such lists, none of them empty",
    "stop": f"a text or a list of at most {MAX_STOPS} texts, none of them empty",
}
"""Fields of several types, of which pydantic would name one."""
_WITHIN = ("role", "content", "type", "text", "name", "refusal", "include_usage", "include_obfuscation")
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    include_obfuscation: bool = False


class _Body(BaseModel):
    """What both endpoints take."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: _Text
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: _Text | Annotated[list[_Text], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    _absent: ClassVar[tuple[str, ...]] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        """Every stop string."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def asked_tokens(self) -> int | None:
        """Most new tokens, when the request says."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token; None for no log-probabilities."""
        raise NotImplementedError

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what it used."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """ApiError for what cannot be served."""
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream to be true.", param="stream_options")
        for name, value in (self.model_extra or {}).items():
            _check_extra(name, value)


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None

    def plain(self) -> dict[str, str]:
        """The message as chat templates read it; templates know a developer's as the system's."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ChatBody(_Body):
    """/v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_CHAT_LOGPROBS)] | None = None

    @property
    def asked_tokens(self) -> int | None:
        """Most new tokens, by either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """ApiError for what cannot be served."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise bad_request("max_tokens and max_completion_tokens differ. Give one of them.", param="max_tokens")


class CompletionBody(_Body):
    """/v1/completions. A prompt is text, tokens, or a list of either."""

    prompt: _Text | _Texts | _Tokens | _TokenLists
    logprobs: Annotated[int, Field(ge=0, le=MAX_TEXT_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token; None for no log-probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """Every prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        prompts: list[Any] = list(self.prompt)
        return [prompts] if isinstance(prompts[0], int) else prompts


B = TypeVar("B", ChatBody, CompletionBody)


def read_body(kind: type[B], raw: bytes) -> B:
    """The body of a request; ApiError names the first field that is wrong."""
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error) from None
    body.check()
    return body


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return bad_request("The body is not JSON.", code="invalid_json")
    path = [str(part) for part in first["loc"]]
    param = path[0] if path else None
    if first["type"] == "missing":
        return bad_request(f"{'.'.join(path)} is missing.", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return bad_request(f"{'.'.join(path)} is not known here.", param=param, code="unknown_parameter")
    if param in _SHAPES:
        return bad_request(f"{param} has to be {_SHAPES[param]}.", param=param, code="invalid_type")
    where = ".".join(part for part in path if part == param or part.isdigit() or part in _WITHIN)
    return bad_request(f"{where or 'body'}: {first['msg']}.", param=param, code="invalid_type")


def _check_extra(name: str, value: Any) -> None:
    shown = name[:64] if name.isidentifier() and name.isascii() else "a field"
    if name in _LABELS or (value is None and name in _OFF):
        return
    if name not in _OFF:
        raise bad_request(f"Unrecognized request argument: {shown}.", param=shown, code="unknown_parameter")
    if not any(type(value) is type(off) and value == off for off in _OFF[name]) and not _is_zero(value, _OFF[name]):
        raise bad_request(f"{shown} is not supported by this server.", param=shown, code="unsupported_parameter")


def _is_zero(value: Any, off: tuple[Any, ...]) -> bool:
    return isinstance(value, float) and value == 0 and 0 in off
