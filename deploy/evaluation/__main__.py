"""`python -m deploy.evaluation --config tln.toml`: scores the split model, or with `--unsplit` the whole one here.

Prints one line of JSON with the scores and the seconds. The untrusted node must run; settings are those of `tln`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from deploy.evaluation.task import evaluate
from splitwire.backbone import load_tokenizer, load_whole
from splitwire.settings import load_settings
from tln.connect import connect
from tln.settings import TlnSettings, check_generation


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m deploy.evaluation", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="settings of tln")
    parser.add_argument("--unsplit", action="store_true", help="score the whole model on this machine instead")
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    settings = load_settings(TlnSettings, program="tln", file=arguments.config)
    check_generation(settings)
    tokenizer = load_tokenizer(settings.model)
    if arguments.unsplit:
        _print(load_whole(settings.model), tokenizer, arguments.batch_size)
        return
    with connect(settings) as split:
        _print(split.model, tokenizer, arguments.batch_size)


def _print(model: Any, tokenizer: Any, batch_size: int) -> None:
    began = time.monotonic()
    scores = evaluate(model, tokenizer, batch_size=batch_size)
    scores["seconds"] = round(time.monotonic() - began, 1)
    sys.stdout.write(json.dumps(scores) + "\n")


if __name__ == "__main__":
    main()
