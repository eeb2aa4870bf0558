"""`auditor tap`: put the tap between a trusted and an untrusted node and keep what crosses as a wire bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitwire.options import Config, PrintSettings, Set, effective_settings
from splitwire.settings import render
from splitwire.tls import TlsFiles


def command(
    *,
    listen: Annotated[str, typer.Option(help="Address for the trusted node, host:port; port 0 takes a free one.")] = "",
    upstream: Annotated[str, typer.Option(help="Address of the untrusted node, host:port.")] = "",
    upstream_name: Annotated[str, typer.Option(help="Name in its certificate, where that is not the host.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the bundle, new or empty.")] = None,
    tls: Annotated[Path | None, typer.Option(help="Folder with the tap's ca.pem, cert.pem and key.pem.")] = None,
    signing_key: Annotated[Path | None, typer.Option(help="Ed25519 key that signs the bundle's manifest.")] = None,
    metrics: Annotated[str, typer.Option(help="Address of the Prometheus metrics, host:port.")] = "",
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Plaintext, between loopback addresses only.")
    ] = False,
    config: Config = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
) -> None:
    """Forward every message between the two nodes unchanged and record it. SIGTERM completes the bundle."""
    from auditor.tap import TapSettings, serve
    from splitwire import logging

    named: dict[str, str | Path | None] = {
        "listen": listen,
        "upstream": upstream,
        "upstream_name": upstream_name,
        "out": out,
        "signing_key": signing_key,
        "metrics.listen": metrics,
        "insecure_loopback": "true" if insecure_loopback else "",
    }
    if tls is not None:
        files = TlsFiles.in_folder(tls)
        named |= {"tls.ca": files.ca, "tls.certificate": files.certificate, "tls.key": files.key}
    own = [(key, str(value)) for key, value in named.items() if value]
    settings = effective_settings(TapSettings, "tap", config, pairs, own)
    if print_settings:
        typer.echo(render(settings))
        return
    logging.configure("auditor")
    serve(settings, ready=lambda address: typer.echo(f"tap listens on {address}"))
