"""Texts that are under way when the untrusted node is started again must end as they would have ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PROMPTS = ("word word number", "another text", "and a third one")
NEW = 24


def test_running_texts_survive_the_node_that_is_started_again(
    start_node: Callable[..., Any], serve: Callable[..., Any], unsplit: Any
) -> None:
    """Streamed, each on a session of its own that is restored by itself."""
    node = start_node()
    endpoint = serve(node)
    endpoint.slow_down(0.05)
    client, pieces = endpoint.client(), [""] * len(PROMPTS)

    def ask(index: int) -> None:
        options: dict[str, Any] = {"model": "tiny", "prompt": PROMPTS[index], "max_tokens": NEW, "temperature": 0}
        for chunk in client.completions.create(**options, stream=True):
            pieces[index] += chunk.choices[0].text
            if index == 0 and not restarted and len(pieces[0]) > 2:
                restarted.append(endpoint.running())
                node.stop()
                node.start()

    restarted: list[int] = []
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        list(pool.map(ask, range(len(PROMPTS))))
    assert restarted == [len(PROMPTS)]
    assert pieces == [unsplit.text(prompt, NEW) for prompt in PROMPTS]
