"""`python -m benchmarks.inversion`: prompts read from rows of a head by our inverter, SipIt and ActInv, wire by wire.

Every attack of one cell (a depth and a wire) reads the same rows in the same run. A cell that is finished is written
down at once; with the same --out a later run goes on where an earlier one ended, and refuses other settings.

Seconds are those of reading, on this machine as busy as it was; processor seconds and tokens through the head are given
beside them. What an attack learns once is told apart as fit_seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from splitwire.console import prepare_process

prepare_process()  # before torch loads

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from auditor.arrays import Integers  # noqa: E402
from auditor.attacks.inversion.actinv import ActInv  # noqa: E402
from auditor.attacks.inversion.exact_inverter import ExactInverter  # noqa: E402
from auditor.attacks.inversion.sipit import SipIt  # noqa: E402
from auditor.channels import FORWARD_ONLY  # noqa: E402
from auditor.plan import InversionSettings  # noqa: E402
from auditor.progress import silent  # noqa: E402
from auditor.public_model import PublicModel  # noqa: E402
from auditor.public_text import load_public_text  # noqa: E402
from auditor.views.prompt import CapturedText, PromptView  # noqa: E402
from splitwire.backbone import ModelSettings, load_config, load_tokenizer  # noqa: E402
from splitwire.frames import quantise_rows  # noqa: E402

console = Console()
_FEWEST_TOKENS, _MOST_TOKENS = 30, 60
_SEED = 7

Rows = list[torch.Tensor]


def _gaussian(rows: Rows, sigma: torch.Tensor | float) -> Rows:
    generator = torch.Generator().manual_seed(_SEED)
    return [each + sigma * torch.randn(each.shape, generator=generator) for each in rows]


def _int8(rows: Rows) -> Rows:
    quantised = [quantise_rows(each) for each in rows]
    return [values.float() * scales[:, None] for values, scales in quantised]


def _largest_half(rows: Rows) -> Rows:
    return [torch.where(each.abs() > each.abs().median(-1, keepdim=True).values, each, 0.0) for each in rows]


def _random_half(rows: Rows) -> Rows:
    generator = torch.Generator().manual_seed(_SEED)
    return [each * (torch.rand(each.shape, generator=generator) < 0.5) for each in rows]


WIRES: Mapping[str, tuple[str, Callable[[Rows], Rows]]] = {
    "fp32": ("fp32", lambda rows: rows),
    "bf16": ("bf16", lambda rows: [each.bfloat16().float() for each in rows]),
    "int8": ("int8", _int8),
    "sigma-0.1": ("fp32", lambda rows: _gaussian(rows, 0.1)),
    "largest-half": ("fp32", _largest_half),
    "random-half": ("fp32", _random_half),
    "noise-global": ("fp32", lambda rows: _gaussian(rows, 0.1 * torch.cat(rows).std())),
    "noise-channel": ("fp32", lambda rows: _gaussian(rows, 0.1 * torch.cat(rows).std(0))),
}
"""Wire dtype and what happens to the rows. Noise is 0.1 of the standard deviation of all entries, or of a channel's."""


def main() -> int:
    """Runs what is not in --out yet, and prints the table of all of it."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    stored = _stored(arguments)
    for depth in arguments.depths:
        for row in _cells(arguments, depth, {(row["blocks"], row["wire"], row["attack"]) for row in stored}):
            stored.append(row)
            _write(arguments, stored)
            console.out(json.dumps(row), highlight=False)
    console.print(_table(stored))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inversion")
    parser.add_argument("--prompts", type=Path, help=".jsonl of prompts (default: held-out pieces of the shipped text)")
    parser.add_argument("--field", default="query", help="field of a prompt in --prompts")
    parser.add_argument("--count", type=int, default=20, help="prompts of 30 to 60 tokens")
    parser.add_argument("--depths", type=int, nargs="+", default=[5], help="blocks before the cut")
    parser.add_argument("--wires", nargs="+", default=["fp32"], choices=list(WIRES))
    parser.add_argument("--actinv", type=int, default=1, help="prompts for ActInv at its published schedule")
    parser.add_argument("--sipit", type=int, default=1, help="prompts for SipIt")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--source", default=ModelSettings().source)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/inversion.json"))
    return parser.parse_args()


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a stored row depends on beside its own cell."""
    prompts = str(arguments.prompts) if arguments.prompts else "shipped"
    return {"prompts": prompts, "source": arguments.source, "threads": arguments.threads, "count": arguments.count}


def _stored(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if not arguments.out.exists():
        return []
    report = json.loads(arguments.out.read_text(encoding="utf-8"))
    if report["settings"] != _settings(arguments):
        sys.exit(f"{arguments.out} was written with {report['settings']}: name another --out")
    return list(report["rows"])


def _write(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    beside = arguments.out.with_suffix(".part")
    beside.write_text(json.dumps({"settings": _settings(arguments), "rows": rows}, indent=2) + "\n", encoding="utf-8")
    beside.replace(arguments.out)


@torch.no_grad()
def _cells(arguments: argparse.Namespace, depth: int, done: set[tuple[int, str, str]]) -> Iterator[dict[str, Any]]:
    settings = ModelSettings(source=arguments.source, first_layer=depth)
    layers = int(load_config(settings).num_hidden_layers)
    settings = dataclasses.replace(settings, last_layer=layers - 1)
    model, tokenizer = PublicModel(settings), load_tokenizer(settings)
    public = load_public_text(InversionSettings(), tokenizer)
    prompts = _prompts(arguments, tokenizer, public.held_out)
    rows = [model.head(torch.from_numpy(ids)[None])[0] for ids in prompts]
    for wire in arguments.wires:
        wire_dtype, change = WIRES[wire]
        texts = tuple(CapturedText(each, None, None, None, len(each)) for each in change(rows))
        attacks = ((ExactInverter(), len(texts)), (SipIt(), arguments.sipit), (ActInv(), arguments.actinv))
        for attack, count in attacks:
            if count and (depth, wire, attack.name) not in done:
                view = PromptView(FORWARD_ONLY, texts[:count], model, public.auxiliary, wire_dtype, _SEED)
                yield {"blocks": depth, "wire": wire, "attack": attack.name} | _measured(attack, view, prompts)


def _prompts(arguments: argparse.Namespace, tokenizer: Any, held_out: Sequence[Integers]) -> list[Integers]:
    """Distinct prompts of 30 to 60 tokens, in a random order that is always the same."""
    generator = np.random.default_rng(_SEED)
    if arguments.prompts is None:
        lengths = generator.integers(_FEWEST_TOKENS, _MOST_TOKENS + 1, len(held_out))
        found = [ids[:length] for ids, length in zip(held_out, lengths, strict=True)]
    else:
        lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
        texts = dict.fromkeys(json.loads(line)[arguments.field] for line in lines)
        found = [np.array(tokenizer(text)["input_ids"], dtype=np.int64) for text in texts]
    fitting = [ids for ids in found if _FEWEST_TOKENS <= len(ids) <= _MOST_TOKENS]
    return [fitting[number] for number in generator.permutation(len(fitting))[: arguments.count]]


@torch.enable_grad()
def _measured(attack: Any, view: PromptView, prompts: list[Integers]) -> dict[str, Any]:
    began = time.process_time()
    recovered = attack.run(view, InversionSettings(), silent)
    processor_seconds = time.process_time() - began
    right = [guess.tokens[:-1] == ids for guess, ids in zip(recovered, prompts, strict=False)]
    tokens = sum(len(each) for each in right)
    seconds = sum(guess.seconds for guess in recovered)
    row = {
        "prompts": len(right),
        "tokens": tokens,
        "accuracy": float(np.concatenate(right).mean()),
        "exact_prompts": sum(bool(each.all()) for each in right),
        "seconds_a_token": seconds / tokens,
        "fit_seconds": recovered[0].details.get("fit_seconds", 0.0),
        "processor_seconds": processor_seconds,
        "load": os.getloadavg()[0],
    }
    if "head_tokens" in recovered[0].details:
        row["head_tokens_a_token"] = sum(guess.details["head_tokens"] for guess in recovered) / tokens
    if recovered[0].certainty is not None:
        certainty, hit = np.concatenate([guess.certainty[:-1] for guess in recovered]), np.concatenate(right)
        row["certainty"] = float(certainty.mean())
        row["certainty_where_wrong"] = float(certainty[~hit].mean()) if not hit.all() else None
    return row


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="prompts read from forward rows", title_justify="left")
    for column in ("blocks", "wire", "attack", "prompts", "accuracy", "exact", "s a token", "head tokens", "x ActInv"):
        table.add_column(column, justify="left" if column in {"wire", "attack"} else "right")
    slow = {(row["blocks"], row["wire"]): row["seconds_a_token"] for row in rows if row["attack"] == ActInv.name}
    for row in rows:
        ratio = slow.get((row["blocks"], row["wire"]), 0.0) / row["seconds_a_token"]
        table.add_row(
            str(row["blocks"]),
            row["wire"],
            row["attack"],
            str(row["prompts"]),
            f"{row['accuracy']:.4f}",
            str(row["exact_prompts"]),
            f"{row['seconds_a_token']:.4f}",
            f"{row['head_tokens_a_token']:.1f}" if "head_tokens_a_token" in row else "",
            f"{ratio:.1f}" if ratio else "",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
