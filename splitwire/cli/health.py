"""`splitwire health`: asks a running node or tap whether it serves, as containers and units do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where it listens.", show_default=False)],
    *,
    tls: Annotated[
        Path | None, typer.Option("--tls", help="Folder with ca.pem, cert.pem and key.pem of an allowed client.")
    ] = None,
    server_name: Annotated[str, typer.Option("--server-name", help="Name in its certificate, if not the host.")] = "",
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Plaintext, to a loopback address only.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for an answer.", min=0.1)] = 5.0,
    wait: Annotated[float, typer.Option("--wait", help="Ask again for so many seconds.", min=0)] = 0.0,
) -> None:
    """Ask the gRPC health service. Exit code 0: it serves; 6: it does not, or cannot be reached."""
    import stamina

    from splitwire.errors import UnavailableError
    from splitwire.health import check
    from splitwire.tls import TlsFiles

    files = None if tls is None else TlsFiles.in_folder(tls)
    attempts = None if wait else 1
    for attempt in stamina.retry_context(on=UnavailableError, attempts=attempts, timeout=wait or None, wait_max=2.0):
        with attempt:
            check(address, files, server_name=server_name, insecure_loopback=insecure_loopback, timeout_seconds=timeout)
    typer.echo(f"{address} serves")
