"""`auditor import`: tensors of another split system as a bundle that can be audited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A .safetensors, .npz or .pt file.", show_default=False)
    ],
    *,
    mapping: Annotated[
        Path, typer.Option("--mapping", help="TOML file: which tensor is which hop.", show_default=False)
    ],
    audit_key: Annotated[
        Path, typer.Option("--audit-key", help="audit.pub of auditor keygen: seals the truth.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the bundle, new or empty.")] = Path("bundle"),
    signing_key: Annotated[
        Path | None, typer.Option("--signing-key", help="Ed25519 key that signs the bundle.")
    ] = None,
) -> None:
    """Write tensors as a wire bundle with sealed truth. Audit it like any other."""
    from rich.console import Console

    from auditor.importing import import_tensors, load_mapping
    from auditor.progress import shown
    from splitwire.sealing import load_signing_key

    chosen = load_mapping(mapping)
    key = None if signing_key is None else load_signing_key(signing_key)
    with shown(Console(stderr=True)) as progress:
        done = import_tensors(source, chosen, out, audit_key=audit_key, signing_key=key, progress=progress)
    typer.echo(f"{out}: {done.num_steps} steps of {done.num_documents} documents; hops {', '.join(done.hops)}")
