"""Answers are those of the unsplit model, alone and eight at once, whole and streamed."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[4] / "docs" / "serving.md"
PROMPTS = [f"{'word ' * (2 * number)}number {number}" for number in range(8)]
NEW = 20


def streamed(client: Any, **options: Any) -> tuple[str, str | None]:
    """Text and finish reason of a stream."""
    text, reason = "", None
    for chunk in client.completions.create(model="tiny", stream=True, **options):
        text += chunk.choices[0].text
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


def test_eight_at_once_answer_as_alone(endpoint: Any, unsplit: Any) -> None:
    """Of different lengths, some longer than a part of a prompt; half of them streamed. They share steps."""
    client, sizes = endpoint.client(), []
    layers = endpoint.parts.engine.batch.layers
    head = layers.head

    def counted(tokens: Any, caches: Any) -> Any:
        sizes.append(len(tokens))
        return head(tokens, caches)

    layers.head = counted
    endpoint.slow_down(0.01)

    def ask(index: int) -> str:
        options = {"prompt": PROMPTS[index], "max_tokens": NEW, "temperature": 0}
        if index % 2:
            return streamed(client, **options)[0]
        return client.completions.create(model="tiny", **options).choices[0].text

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert answers == [unsplit.text(prompt, NEW) for prompt in PROMPTS]
    assert max(sizes) >= 4
    metrics = endpoint.http().get("/metrics").text
    assert 'tln_serve_texts_total{outcome="length"} 8.0' in metrics
    assert "tln_serve_near_ties_total 0.0" in metrics


def test_a_chat_follows_the_template(endpoint: Any, unsplit: Any) -> None:
    """Streamed and whole; the first piece says whose turn it is, the last one what was used."""
    messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    options = {"model": "tiny", "messages": messages, "max_tokens": NEW, "temperature": 0}
    client = endpoint.client()
    whole = client.chat.completions.create(**options)
    expected = unsplit.text("system: be brief\nuser: hello\nassistant: ", NEW)
    assert whole.choices[0].message.content == expected
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
        len("system: be brief\nuser: hello\nassistant: "),
        NEW,
    )


def test_an_end_token_ends_a_text(endpoint: Any, unsplit: Any) -> None:
    """It is counted and not shown."""
    tokens = unsplit.tokens(PROMPTS[1], NEW)
    endpoint.parts.engine.ends = frozenset({tokens[6]})
    first = tokens.index(tokens[6])
    answer = endpoint.client().completions.create(model="tiny", prompt=PROMPTS[1], max_tokens=NEW, temperature=0)
    assert answer.choices[0].text == unsplit.tokenizer.decode(tokens[:first], skip_special_tokens=True)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", first + 1)


def test_stop_strings_across_tokens(endpoint: Any, unsplit: Any) -> None:
    """Every character is a token here, so a stop string of three is three tokens. Nothing of it is shown."""
    text, client = unsplit.text(PROMPTS[2], 30), endpoint.client()
    stop = text[4:7]
    expected = text[: text.find(stop)]
    options = {"prompt": PROMPTS[2], "max_tokens": 30, "temperature": 0, "stop": ["never seen", stop]}
    answer = client.completions.create(model="tiny", **options, logprobs=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    assert all(offset < len(expected) for offset in answer.choices[0].logprobs.text_offset)
    assert streamed(client, **options) == (expected, "stop")


def test_log_probabilities_are_those_of_the_unsplit_model(endpoint: Any, unsplit: Any) -> None:
    """In both forms of the API, whole and streamed."""
    prompt, client = "user: hello\nassistant: ", endpoint.client()
    tokens = unsplit.tokens(prompt, 6)
    ids = torch.tensor([unsplit.tokenizer(prompt)["input_ids"] + tokens])
    with torch.no_grad():
        logprobs = unsplit.model(ids).logits[0, -7:-1].float().log_softmax(-1)
    expected = [float(row[token]) for row, token in zip(logprobs, tokens, strict=True)]
    chat = {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 3}
    common = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    scores = client.chat.completions.create(**common, **chat).choices[0].logprobs.content
    assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-4)
    assert [score.bytes for score in scores] == [[token_byte(unsplit, token)] for token in tokens]
    best = logprobs.topk(3).values.tolist()
    assert [[top.logprob for top in score.top_logprobs] for score in scores] == [
        pytest.approx(row, abs=1e-4) for row in best
    ]
    pieces = client.chat.completions.create(**common, **chat, stream=True)
    told = [
        score.logprob for piece in pieces if piece.choices[0].logprobs for score in piece.choices[0].logprobs.content
    ]
    assert told == pytest.approx(expected, abs=1e-4)
    legacy = client.completions.create(**common, prompt=prompt, logprobs=2).choices[0].logprobs
    assert legacy.token_logprobs == pytest.approx(expected, abs=1e-4)
    assert [len(top) for top in legacy.top_logprobs] == [2] * 6
    assert legacy.text_offset[0] == 0


def token_byte(unsplit: Any, token: int) -> int:
    """The byte that a token of the tiny vocabulary is."""
    from tln.serve.text import _byte_alphabet  # noqa: PLC0415 - the one table of it

    return _byte_alphabet()[unsplit.tokenizer.convert_ids_to_tokens(token)]


def test_a_seed_gives_the_same_answer_in_any_company(endpoint: Any) -> None:
    """Alone, again, and with others in the batch; another seed gives another. n choices have seeds of their own."""
    client = endpoint.client()
    options = {"model": "tiny", "prompt": "once", "max_tokens": NEW, "temperature": 1.3, "top_p": 0.9}

    def ask(seed: int | None) -> str:
        return client.completions.create(**options, seed=seed).choices[0].text

    alone = ask(7)
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, [7, 1, 7, None, 2, 7]))
    assert [together[0], together[2], together[5], ask(7)] == [alone] * 4
    assert alone not in {together[1], together[3], together[4]}
    several = client.completions.create(**options, seed=7, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].text == alone
    assert several.choices[1].text == ask(8)
    assert several.usage.prompt_tokens == len("once")


def test_several_prompts_in_one_request(endpoint: Any, unsplit: Any) -> None:
    """Each with its own index, as text or as tokens; streams are told apart by it."""
    client = endpoint.client()
    answer = client.completions.create(model="tiny", prompt=PROMPTS[:3], max_tokens=4, temperature=0)
    expected = [unsplit.text(prompt, 4) for prompt in PROMPTS[:3]]
    assert [choice.text for choice in answer.choices] == expected
    tokens = [unsplit.tokenizer(prompt)["input_ids"] for prompt in PROMPTS[:3]]
    texts = ["", "", ""]
    for chunk in client.completions.create(model="tiny", prompt=tokens, max_tokens=4, temperature=0, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected


def test_the_documented_python_runs(endpoint: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/serving.md has it, at another address."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    here = block.replace("http://127.0.0.1:8080", endpoint.url).replace("smollm2-135m-instruct", "tiny")
    exec(here, names)  # noqa: S102 - our own page
    names["client"].close()
    assert capsys.readouterr().out


def test_models_are_listed(endpoint: Any) -> None:
    """The one there is."""
    client = endpoint.client()
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "splitwire"
