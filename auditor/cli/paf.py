"""`auditor paf`: how hard each layer of a model is to invert, and whether that predicts what inversion reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from splitwire.backbone import EMBEDDED_MODEL

if TYPE_CHECKING:
    from auditor.arrays import Integers
    from auditor.paf.bypass import BypassCheck
    from auditor.paf.measure import AttentionJacobian, PafSettings
    from auditor.progress import Progress
    from splitwire.backbone import ModelSettings

SCHEMA = "splitwire.paf/1"


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder, .gguf file or hub id.")] = EMBEDDED_MODEL,
    *,
    out: Annotated[Path, typer.Option("--out", help="New or empty folder for paf.json and paf.svg.")],
    blocks: Annotated[int, typer.Option(min=0, help="Blocks from the start of the model; 0 for all.")] = 0,
    texts: Annotated[int, typer.Option(min=1, help="Public texts.")] = 8,
    length: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 40,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each at which Jacobians are taken.")] = 2,
    attention: Annotated[
        str, typer.Option(help="Attention's Jacobian: row (the others fixed) or sequence (all rows).")
    ] = "row",
    exact_width: Annotated[int, typer.Option(min=0, help="Widest layer whose eigenvalues are all taken.")] = 2048,
    auxiliary: Annotated[str, typer.Option(help="Public text: folder of .txt or .jsonl; the shipped one.")] = "",
    bypass_steps: Annotated[
        int, typer.Option(min=0, help="Also bypass each layer of --blocks and attack with so many steps; 0: do not.")
    ] = 0,
    bypass_texts: Annotated[int, typer.Option(min=1, help="Texts of that attack.")] = 2,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda or cuda:N.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Seed of rows, probes and the attack.")] = 0,
) -> None:
    """Measure PAF and Max-PAF of a model's layers on public text."""
    from rich.console import Console

    from auditor.paf.measure import PafSettings
    from auditor.progress import shown
    from splitwire.backbone import ModelSettings
    from splitwire.errors import SettingsError

    if attention not in ("row", "sequence"):
        raise SettingsError(f"--attention is {attention!r}", remedy="use row or sequence")
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise SettingsError(f"--out {out} is not an empty folder", remedy="name another one")
    if bypass_steps and not blocks:
        raise SettingsError("--bypass-steps needs --blocks", remedy="say how many blocks come before the cut")
    jacobian = cast("AttentionJacobian", attention)
    settings = PafSettings(blocks=blocks, rows=rows, attention=jacobian, exact_width=exact_width, seed=seed)
    wanted = _Wanted(texts, length, auxiliary, bypass_steps, bypass_texts)
    with shown(Console(stderr=True)) as progress:
        progress("loading the model", 0, 0)
        result, picture = _measure(ModelSettings(source=model, device=device), settings, wanted, progress)
    _write(out, result, picture)
    _print(result)
    typer.echo(f"wrote {out / 'paf.json'} and {out / 'paf.svg'}")


@dataclass(frozen=True)
class _Wanted:
    """So many public texts of so many tokens, and what the check by bypassing spends; 0 steps: no check."""

    num_texts: int
    length: int
    auxiliary: str
    bypass_steps: int
    bypass_texts: int


def _measure(
    model: ModelSettings, settings: PafSettings, wanted: _Wanted, progress: Progress
) -> tuple[dict[str, Any], str]:
    from dataclasses import asdict, replace

    import splitwire
    from auditor.paf.bypass import check_by_bypass
    from auditor.paf.measure import measure
    from auditor.paf.plot import paf_plot
    from auditor.public_model import PublicModel
    from splitwire.backbone import load_tokenizer, load_whole

    tokenizer = load_tokenizer(model)
    texts, name = _texts(tokenizer, wanted)
    factors = measure(load_whole(model), texts, settings, progress)
    check: BypassCheck | None = None
    if wanted.bypass_steps:
        cut = replace(model, first_layer=settings.blocks, last_layer=settings.blocks + 1)
        check = check_by_bypass(
            PublicModel(cut),
            factors,
            texts[: wanted.bypass_texts],
            tokenizer,
            steps=wanted.bypass_steps,
            device=model.device,
            seed=settings.seed,
            progress=progress,
        )
    result = {
        "schema": SCHEMA,
        "version": splitwire.__version__,
        "model": model.source,
        "settings": asdict(settings),
        "text": {"name": name, "count": len(texts), "length": wanted.length},
        "layers": [asdict(factor) for factor in factors],
        "bypass": None if check is None else asdict(check),
    }
    return result, paf_plot(factors, f"PAF of {model.source}")


def _texts(tokenizer: Any, wanted: _Wanted) -> tuple[list[Integers], str]:
    """The beginnings of so many pieces of public text."""
    from auditor.plan import InversionSettings
    from auditor.public_text import load_public_text
    from splitwire.errors import SettingsError

    public = load_public_text(InversionSettings(auxiliary=wanted.auxiliary), tokenizer)
    pieces = [piece[: wanted.length] for piece in public.auxiliary if len(piece) >= wanted.length]
    if len(pieces) < wanted.num_texts:
        raise SettingsError(
            f"{public.name} has {len(pieces)} pieces of {wanted.length} tokens, --texts is {wanted.num_texts}",
            remedy="ask for fewer or shorter texts, or name a larger --auxiliary",
        )
    return pieces[: wanted.num_texts], public.name


def _write(out: Path, result: dict[str, Any], picture: str) -> None:
    import json

    from splitwire.private_files import replace_file

    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "paf.svg", picture.encode())
    replace_file(out / "paf.json", (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())


def _print(result: dict[str, Any]) -> None:
    """Layer names with their factors in the first block and over the others."""
    names = list(dict.fromkeys(layer["name"] for layer in result["layers"]))
    typer.echo(f"{'layer':<28}{'width':>7}{'PAF, block 0':>14}{'others':>11}{'Max-PAF':>11}")
    for name in names:
        mine = [layer for layer in result["layers"] if layer["name"] == name]
        others = mine[1:] or mine
        mean = sum(layer["expected"] for layer in others) / len(others)
        most = sum(layer["maximum"] for layer in others) / len(others)
        typer.echo(f"{name:<28}{mine[0]['width']:>7}{mine[0]['expected']:>14.3f}{mean:>11.3f}{most:>11.3f}")
    check = result["bypass"]
    if check is not None:
        correlation = "none" if check["correlation"] is None else f"{check['correlation']:+.2f}"
        typer.echo(
            f"bypassed {len(check['layers'])} layers, {check['num_texts']} texts, {check['num_steps']} steps: "
            f"correlation of PAF and ROUGE-L {correlation}; whole head ROUGE-L {check['whole_rouge_l_ratio']:.2f}"
        )
