"""`tln generate`: continues a prompt, with the middle of the model on the untrusted node.

The text goes to stdout, all else to stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitwire.errors import SettingsError
from tln.cli.options import Config, PrintSettings, Set, effective_settings, show_settings

if TYPE_CHECKING:
    import torch

    from tln.model import SplitModelForCausalLM
    from tln.settings import TlnSettings

STDIN = "-"
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.001, 1000.0


@dataclass(frozen=True)
class Decoding:
    """How the next token is chosen. Temperature 0 is greedy."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    num_beams: int
    seed: int

    def options(self) -> dict[str, Any]:
        """Arguments of transformers' generate."""
        chosen: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "num_beams": self.num_beams}
        if self.temperature == 0:
            # Sampling options of the model's own generation settings would only be warned about.
            return chosen | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return chosen | {
            "do_sample": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }


def command(  # noqa: PLR0917 - the options of a command
    config: Config = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
    prompt: Annotated[str, typer.Option(help="The prompt.")] = "",
    prompt_file: Annotated[
        str, typer.Option(help="File with the prompt, or - for stdin; keeps it out of the process list.")
    ] = "",
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to add.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus of sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Candidates of sampling; 0 for all.")] = 0,
    num_beams: Annotated[int, typer.Option(min=1, help="Beams; more than 1 shows the text at the end.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Seed of sampling.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Folder for a wire bundle of this run.")] = None,
) -> None:
    """Continue a prompt; the middle of the model runs on the untrusted node."""
    more = [] if record is None else [("record.folder", str(record))]
    settings = effective_settings(config, pairs, more)
    if print_settings:
        from tln.settings import check_generation

        show_settings(settings, check_generation)
        return
    text = read_prompt(prompt, prompt_file)
    _run(settings, text, Decoding(max_new_tokens, temperature, top_p, top_k, num_beams, seed), chat=chat)


def read_prompt(prompt: str, prompt_file: str) -> str:
    """The prompt from exactly one of the two options; the newline that ends a file is not part of it."""
    if prompt and not _is_text(prompt):
        raise SettingsError("--prompt is not UTF-8", remedy="use --prompt-file with a UTF-8 file")
    if bool(prompt) == bool(prompt_file):
        raise SettingsError("the prompt is given twice or not at all", remedy="use one of --prompt and --prompt-file")
    if prompt:
        return prompt
    try:
        content = sys.stdin.buffer.read() if prompt_file == STDIN else Path(prompt_file).read_bytes()
        return content.decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"prompt file {prompt_file} cannot be read: {reason}", remedy="check the path") from None


def _is_text(prompt: str) -> bool:
    return not any(0xD800 <= ord(character) < 0xE000 for character in prompt)  # what argv makes of other bytes


def check_decoding(decoding: Decoding) -> None:
    """SettingsError for a temperature at which no probability is left, or all are the same."""
    if decoding.temperature and not _MIN_TEMPERATURE <= decoding.temperature <= _MAX_TEMPERATURE:
        raise SettingsError(
            f"--temperature is {decoding.temperature}",
            remedy=f"use 0 for greedy decoding, or {_MIN_TEMPERATURE} to {_MAX_TEMPERATURE:.0f}",
        )


def check_length(num_prompt: int, decoding: Decoding, settings: TlnSettings, num_positions: int) -> None:
    """SettingsError, before anything crosses, for more than the session or the model can hold."""
    stack = settings.stack
    if decoding.num_beams > stack.max_cache_sequences:
        raise SettingsError(
            f"--num-beams is {decoding.num_beams}, stack.max_cache_sequences {stack.max_cache_sequences}",
            remedy="use fewer beams, or raise stack.max_cache_sequences",
        )
    total = num_prompt + decoding.max_new_tokens
    for name, most in (("stack.max_cache_positions", stack.max_cache_positions), ("the model's length", num_positions)):
        if total > most:
            raise SettingsError(
                f"{num_prompt} tokens of the prompt and {decoding.max_new_tokens} new ones exceed {name}, {most}",
                remedy="lower --max-new-tokens, shorten the prompt, or raise that limit where it is a setting",
            )


def _run(settings: TlnSettings, prompt: str, decoding: Decoding, *, chat: bool) -> None:
    import torch

    from splitwire.backbone import load_config, load_tokenizer
    from tln.cli.display import start_logging
    from tln.connect import connect
    from tln.settings import check_generation

    start_logging()
    check_generation(settings)
    check_decoding(decoding)
    tokenizer = load_tokenizer(settings.model)
    inputs = encode(tokenizer, prompt, chat=chat)
    check_length(inputs.shape[1], decoding, settings, int(load_config(settings.model).max_position_embeddings))
    torch.manual_seed(decoding.seed)
    with connect(settings, announce=_announce) as split:
        _generate(split.model, tokenizer, inputs, decoding)


def _announce(defence: Mapping[str, Any]) -> None:
    from tln.connect import NO_DEFENCE

    mechanisms = ", ".join(defence["frame"])
    typer.echo(f"defence: {mechanisms}" if mechanisms else NO_DEFENCE, err=True)


def encode(tokenizer: Any, prompt: str, *, chat: bool) -> torch.Tensor:
    """Token ids [1, T] of the prompt. SettingsError for an empty one, or a model without a chat template."""
    if chat and not tokenizer.chat_template:
        raise SettingsError("--chat is given and the model has no chat template", remedy="leave --chat out")
    if chat:
        messages = [{"role": "user", "content": prompt}]
        ids: torch.Tensor = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
    else:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    if ids.shape[1] == 0:
        raise SettingsError("the prompt has no token", remedy="give some text")
    return ids


def _generate(model: SplitModelForCausalLM, tokenizer: Any, inputs: torch.Tensor, decoding: Decoding) -> None:
    from transformers import TextStreamer

    class Stdout(TextStreamer):
        """Shows text as it becomes certain."""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            typer.echo(text, nl=stream_end)

    streamer = Stdout(tokenizer, skip_prompt=True, skip_special_tokens=True) if decoding.num_beams == 1 else None
    began = time.perf_counter()
    output = model.generate(
        inputs.to(model.device),
        streamer=streamer,
        pad_token_id=tokenizer.pad_token_id,
        **decoding.options(),
    )
    seconds = time.perf_counter() - began
    new = output[0, inputs.shape[1] :]
    if streamer is None:
        typer.echo(tokenizer.decode(new, skip_special_tokens=True))
    typer.echo(f"{len(new)} tokens in {seconds:.2f} s, {len(new) / seconds:.1f} tokens/s", err=True)
