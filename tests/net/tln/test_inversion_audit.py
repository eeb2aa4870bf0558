"""Generation over a real untrusted node, recorded, and its texts rebuilt by the auditor from the bundle alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auditor.audit import run_audit
from auditor.channels import FORWARD_ONLY
from auditor.evidence import open_evidence
from auditor.opening import opened_material
from auditor.plan import InversionSettings, Plan, StatisticsSettings
from auditor.progress import silent
from auditor.views.prompt_capture import Grants, prompt_view
from splitwire.backbone import load_head, load_tokenizer
from splitwire.sealing import write_audit_keys
from splitwire.tls import TlsFiles
from tln.connect import connect as connect_as_told
from tln.recording import RecordSettings
from tln.session import StackSettings
from tln.settings import TlnSettings
from tln.transport import ConnectionSettings

WORDS = (
    "My sister Ada lives in Leeds and is allergic to nuts",
    "Remind me that the rent of 840 pounds is due on Friday",
    "Our cat Milo had surgery in March and needs drops twice a day",
    "I left the firm after nine years and have told nobody yet",
)
PLAN = Plan(
    attacks=("nearest_vocabulary",),
    families=(FORWARD_ONLY,),
    scope=(FORWARD_ONLY,),
    statistics=StatisticsSettings(repetitions=500),
    inversion=InversionSettings(max_texts=40),
)


@dataclass(frozen=True)
class Recorded:
    """A bundle of generation with its key, and what was generated in it: prompt and answer of every text."""

    bundle: Path
    key: Path
    texts: list[list[int]]
    num_prompts: list[int]
    model: Any


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _settings(node: Any, tls: TlsFiles, folder: Path, keys: Path) -> TlnSettings:
    return TlnSettings(
        model=node.settings.model,
        stack=StackSettings(prefill_positions=16),
        connection=ConnectionSettings(address=node.settings.listen, tls=tls),
        record=RecordSettings(folder=str(folder), audit_key=str(keys / "audit.pub")),
    )


@pytest.fixture
def recorded(pki: dict[str, TlsFiles], start_node: Callable[..., Any], tmp_path: Path) -> Recorded:
    """22 prompts: in parts, in a padded batch, by beam search and by prompt lookup, which takes positions back."""
    node, keys = start_node(), tmp_path / "keys"
    write_audit_keys(keys)
    tokenizer = load_tokenizer(node.settings.model)
    prompts = [tokenizer(f"{number}: {WORDS[number % 4][: 30 + number]}")["input_ids"] for number in range(22)]
    texts: list[list[int]] = []
    with connect_as_told(_settings(node, pki["tln"], tmp_path / "bundle", keys)) as connected:
        model = connected.model
        for prompt in prompts[:-5]:
            output = model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False, eos_token_id=None)
            texts.append(output[0].tolist())
        padded = tokenizer.pad({"input_ids": prompts[-5:-2]}, padding_side="left", return_tensors="pt")
        output = model.generate(**padded, max_new_tokens=4, do_sample=False, eos_token_id=None)
        width = output.shape[1] - 4
        texts += [row[width - len(prompt) :].tolist() for row, prompt in zip(output, prompts[-5:-2], strict=True)]
        for number, how in ((-2, {"num_beams": 2}), (-1, {"prompt_lookup_num_tokens": 3})):
            output = model.generate(
                torch.tensor([prompts[number]]), max_new_tokens=4, do_sample=False, eos_token_id=None, **how
            )
            texts.append(output[0].tolist())
    return Recorded(tmp_path / "bundle", keys / "audit.key", texts, [len(p) for p in prompts], node.settings.model)


def _view(recorded: Recorded, plan: Plan = PLAN, **grants: bool) -> Any:
    evidence = open_evidence([recorded.bundle], key=recorded.key)
    with opened_material(evidence, replace(plan, compute_modes=()), silent) as opened:
        return prompt_view(opened.material, FORWARD_ONLY, plan, Grants(**grants))


def test_the_view_holds_every_text_whole(recorded: Recorded) -> None:
    """Each once, in order, with the tokens that were generated; its rows are the head's on those very tokens."""
    view, key = _view(recorded)
    assert key.problems == ()
    found = {tuple(text.tokens.tolist()): number for number, text in enumerate(key.texts)}
    head = load_head(recorded.model)
    for tokens, num_prompt in zip(recorded.texts, recorded.num_prompts, strict=True):
        number = found[tuple(tokens)]
        assert key.texts[number].num_prompt == num_prompt
        with torch.no_grad():
            expected = head(torch.tensor([tokens[:-1]]))[0]
        torch.testing.assert_close(view.texts[number].forward, expected, rtol=1e-4, atol=1e-4)
        assert view.texts[number].returned.shape == expected.shape
