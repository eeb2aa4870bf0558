"""`tln prepare`: runs the whole model once over the texts, for the targets and the baseline that training needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tln.cli.options import Config, Preset, PrintSettings, Set, effective_settings, show_settings

if TYPE_CHECKING:
    from tln.settings import TlnSettings


def command(
    config: Config = None, preset: Preset = None, pairs: Set = None, print_settings: PrintSettings = False
) -> None:
    """Run the whole model once over the private and the public text and keep what training needs of it."""
    settings = effective_settings(config, pairs, preset=preset)
    if print_settings:
        show_settings(settings, _check)
        return
    from tln.cli.display import rich_progress
    from tln.training.prepare import dependencies_of, load_texts, prepare

    texts = load_texts(settings.model, settings.corpus)
    with rich_progress() as progress:
        prepared = prepare(settings.model, settings.prepare, texts, progress, dependencies_of(settings.model, texts))
    facts = prepared.facts
    typer.echo(f"prepared: {prepared.folder}")
    typer.echo(
        f"private text: {facts['num_documents']} documents, {facts['num_blocks']} blocks, "
        f"{facts['num_tokens_left_out']} tokens left out, unsplit cross-entropy {facts['baseline_nats']:.4f} nats"
    )
    if "public_row_norm_median" in facts:
        typer.echo(
            f"public text: norm of a row at the cut, median {facts['public_row_norm_median']:.1f}, "
            f"largest {facts['public_row_norm_max']:.1f}"
        )
    typer.echo(f"fingerprint of the delegated layers: {facts['fingerprint']}")


def _check(settings: TlnSettings) -> None:
    from tln.training.corpus import check_corpus
    from tln.training.settings import check_prepare

    check_corpus(settings.corpus)
    check_prepare(settings.prepare)
