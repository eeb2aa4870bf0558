"""Bodies are read strictly, and what cannot be served is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tln.serve.errors import ApiError
from tln.serve.schema import ChatBody, CompletionBody, read_body

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}


def chat(**more: Any) -> ChatBody:
    return read_body(ChatBody, json.dumps(CHAT | more).encode())


def text(**more: Any) -> CompletionBody:
    return read_body(CompletionBody, json.dumps(TEXT | more).encode())


def test_what_is_understood() -> None:
    """Both names of the limit, one stop string or several, parts of a message, developers."""
    body = chat(max_completion_tokens=5, stop="x", n=2, temperature=0, seed=-1, user="somebody", tools=[])
    assert (body.asked_tokens, body.stops, body.temperature) == (5, ("x",), 0)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[{"role": "developer", "content": parts}], max_tokens=3, logprobs=True)
    assert body.messages[0].plain() == {"role": "system", "content": "ab"}
    assert (body.asked_tokens, body.num_logprobs) == (3, 0)
    assert chat(presence_penalty=0.0, response_format={"type": "text"}, logit_bias=None).num_logprobs is None


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts(prompt: Any, prompts: Any) -> None:
    """Text, tokens, or several of either."""
    assert text(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": 2.1}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_type"),
        ({"n": True}, "n", "invalid_type"),
        ({"stop": ""}, "stop", "invalid_type"),
        ({"stop": ["x"] * 17}, "stop", "invalid_type"),
        ({"messages": []}, "messages", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "invalid_type"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages", "unknown_parameter"),
        ({"messages": [{"role": "user"}]}, "messages", "missing_required_parameter"),
        ({"mystery": 1}, "mystery", "unknown_parameter"),
        ({"tools": [{}]}, "tools", "unsupported_parameter"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
    ],
)
def test_what_is_refused(more: dict[str, Any], param: str, code: str) -> None:
    """By the name of the field, without its value."""
    with pytest.raises(ApiError) as raised:
        chat(**more)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, param, code)


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b'{"model": "m"}trailing', b"\xff", b"[]", b"null"])
def test_what_is_no_object(raw: bytes) -> None:
    """A clear answer, whatever comes."""
    with pytest.raises(ApiError) as raised:
        read_body(ChatBody, raw)
    assert raised.value.status == 400


def test_echo_is_refused() -> None:
    """The prompt's log-probabilities are not computed."""
    with pytest.raises(ApiError, match="echo is not supported"):
        text(echo=True)
    assert text(echo=False, best_of=1).num_logprobs is None


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"stop": 5}, r"^stop has to be a text or a list of at most 16 texts"),
        ({"prompt": [True]}, r"^prompt has to be a text, a list of texts, a list of tokens"),
        ({"temperature": 3}, r"^temperature: Input should be less than or equal to 2\.$"),
    ],
)
def test_the_reason_is_in_the_words_of_the_api(more: dict[str, Any], match: str) -> None:
    """Not in those of the validator's types."""
    with pytest.raises(ApiError, match=match):
        text(**more)
    with pytest.raises(ApiError, match=r"^messages\.0\.content: Input should be a valid string\.$"):
        chat(messages=[{"role": "user", "content": None}])
