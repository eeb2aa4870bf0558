"""`auditor tap`: put the tap between a trusted and an untrusted node and keep what crosses as a wire bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitwire.errors import SettingsError


def command(
    *,
    config: Annotated[Path | None, typer.Option(help="TOML file with the tap's settings.")] = None,
    listen: Annotated[str, typer.Option(help="Address for the trusted node, host:port; port 0 takes a free one.")] = "",
    upstream: Annotated[str, typer.Option(help="Address of the untrusted node, host:port.")] = "",
    upstream_name: Annotated[str, typer.Option(help="Name in its certificate, where that is not the host.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the bundle, new or empty.")] = None,
    tls: Annotated[Path | None, typer.Option(help="Folder with the tap's ca.pem, cert.pem and key.pem.")] = None,
    signing_key: Annotated[Path | None, typer.Option(help="Ed25519 key that signs the bundle's manifest.")] = None,
    metrics: Annotated[str, typer.Option(help="Address of the Prometheus metrics, host:port.")] = "",
    insecure_loopback: Annotated[bool, typer.Option(help="Plaintext, between loopback addresses only.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting as key=value; may be repeated.")] = None,
    print_settings: Annotated[bool, typer.Option(help="Show the effective settings and stop.")] = False,
) -> None:
    """Forward every message between the two nodes unchanged and record it. SIGTERM completes the bundle."""
    from auditor.tap import TapSettings, serve
    from splitwire import logging
    from splitwire.settings import load_settings, render

    named: dict[str, str | Path | None] = {
        "listen": listen,
        "upstream": upstream,
        "upstream_name": upstream_name,
        "out": out,
        "signing_key": signing_key,
        "metrics.listen": metrics,
        "insecure_loopback": "true" if insecure_loopback else "",
    }
    overrides = [_pair(text) for text in set_ or ()]
    overrides += [(key, str(value)) for key, value in named.items() if value]
    if tls is not None:
        overrides += [(f"tls.{key}", str(tls / name)) for key, name in _TLS_FILES.items()]
    settings = load_settings(TapSettings, program="tap", file=config, overrides=overrides)
    if print_settings:
        typer.echo(render(settings))
        return
    logging.configure("auditor")
    serve(settings, ready=lambda address: typer.echo(f"tap listens on {address}"))


_TLS_FILES = {"ca": "ca.pem", "certificate": "cert.pem", "key": "key.pem"}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set {text}", remedy="write --set key=value")
    return key, value
