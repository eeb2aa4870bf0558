"""`auditor tap`: put the tap between a trusted and an untrusted node and keep what crosses as a wire bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitwire.options import Config, PrintSettings, Set, effective_settings
from splitwire.settings import render
from splitwire.tls import TlsFiles

ACTIVE_WARNING = (
    "ACTIVE: this tap changes what the untrusted node returns. It harms the training that it measures: use it on a run "
    "made for the purpose, and never on one whose result you want"
)


def command(
    *,
    listen: Annotated[str, typer.Option(help="Address for the trusted node, host:port; port 0 takes a free one.")] = "",
    upstream: Annotated[str, typer.Option(help="Address of the untrusted node, host:port.")] = "",
    upstream_name: Annotated[str, typer.Option(help="Name in its certificate, where that is not the host.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the bundle, new or empty.")] = None,
    tls: Annotated[Path | None, typer.Option(help="Folder with the tap's ca.pem, cert.pem and key.pem.")] = None,
    signing_key: Annotated[Path | None, typer.Option(help="Ed25519 key that signs the bundle's manifest.")] = None,
    metrics: Annotated[str, typer.Option(help="Address of the Prometheus metrics, host:port.")] = "",
    perturb: Annotated[
        str,
        typer.Option(metavar="MODE", help="ACTIVE tap: change what is returned in training; direction or sign."),
    ] = "",
    perturb_amplitude: Annotated[
        float | None, typer.Option(help="Largest length of a change, as a share of the row's length.")
    ] = None,
    perturb_every: Annotated[
        int | None, typer.Option(help="About one training step in so many is changed; the others are controls.")
    ] = None,
    perturb_seed: Annotated[int | None, typer.Option(help="Seed of the schedule of changes.")] = None,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Plaintext, between loopback addresses only.")
    ] = False,
    config: Config = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
) -> None:
    """Forward every message between the two nodes unchanged and record it. SIGTERM completes the bundle.

    With --perturb it changes what the untrusted node returns, to measure what the trusted node's reaction gives away.
    """
    from auditor.tap import TapSettings, serve
    from splitwire import logging

    named: dict[str, str | Path | float | None] = {
        "listen": listen,
        "upstream": upstream,
        "upstream_name": upstream_name,
        "out": out,
        "signing_key": signing_key,
        "metrics.listen": metrics,
        "perturb.mode": perturb,
        "perturb.amplitude": perturb_amplitude,
        "perturb.every": perturb_every,
        "perturb.seed": perturb_seed,
        "insecure_loopback": "true" if insecure_loopback else "",
    }
    if tls is not None:
        files = TlsFiles.in_folder(tls)
        named |= {"tls.ca": files.ca, "tls.certificate": files.certificate, "tls.key": files.key}
    own = [(key, str(value)) for key, value in named.items() if value not in (None, "")]
    settings = effective_settings(TapSettings, "tap", config, pairs, own)
    if print_settings:
        typer.echo(render(settings))
        return
    logging.configure("auditor")
    if settings.perturb.is_active:
        typer.echo(f"{ACTIVE_WARNING} ({settings.perturb.describe()})", err=True)
    serve(settings, ready=lambda address: typer.echo(f"tap listens on {address}"))
