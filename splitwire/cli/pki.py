"""`splitwire pki`: the certificate authority of the trusted host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitwire import pki

app = typer.Typer(
    no_args_is_help=True,
    help="Make, sign and renew the certificates of a trusted host and its untrusted nodes.",
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the authority.", show_default=False)]
Days = Annotated[int, typer.Option("--days", help="Lifetime of the certificates in days.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="Host name or address of the node; may be repeated.")]


@app.command("init")
def init(
    folder: Folder,
    *,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="Also make DIR/ucn for a node on this machine (demos and tests).")
    ] = False,
    days: Days = pki.DEFAULT_DAYS,
) -> None:
    """Make an authority and the certificates of the trusted host in DIR/ca, DIR/tln, DIR/tap and DIR/monitor."""
    for name, files in pki.init_pki(folder, loopback=loopback, days=days).items():
        typer.echo(f"{name}: {files.certificate.parent}")
    typer.echo(f"The key in {folder / 'ca'} signs everything: keep it on this host and back it up.")


@app.command("request")
def request(
    folder: Annotated[Path, typer.Argument(metavar="NODE_DIR", help="New folder on the node.", show_default=False)],
    *,
    name: Names = None,
    loopback: Annotated[bool, typer.Option("--loopback", help="Also ask for localhost and 127.0.0.1.")] = False,
) -> None:
    """On an untrusted node: make a key and a signing request. The key stays there, the request goes to be signed."""
    names = [*(name or [pki.UCN_NAME]), *(pki.LOOPBACK_NAMES if loopback else ())]
    path = pki.write_request(folder, names)
    typer.echo(f"{path} asks for {', '.join(names)}. Have it signed on the trusted host with: splitwire pki sign")


@app.command("sign")
def sign(
    folder: Folder,
    request_file: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="The node's request.pem.", show_default=False)
    ],
    *,
    out: Annotated[Path, typer.Option("--out", help="New folder for ca.pem and cert.pem.")],
    name: Names = None,
    days: Days = pki.DEFAULT_DAYS,
) -> None:
    """On the trusted host: sign a node's request, for serving only. With --name, only if it asks for exactly these."""
    names = pki.sign_request(folder, request_file, out, expected_names=name or (), days=days)
    typer.echo(
        f"signed for {', '.join(names)}. Copy {out / 'ca.pem'} and {out / 'cert.pem'} beside the node's key.pem."
    )


@app.command("renew")
def renew(
    folder: Folder,
    node: Annotated[str, typer.Argument(metavar="NODE", help="tln, tap, monitor or ucn.", show_default=False)],
    *,
    days: Annotated[
        int | None, typer.Option("--days", help="Lifetime in days; the node's default if left out.")
    ] = None,
) -> None:
    """Give DIR/NODE a certificate with a new lifetime; running servers take it up by themselves."""
    end = pki.renew(folder, node, days=days)
    typer.echo(f"{folder / node / 'cert.pem'} is valid until {end:%Y-%m-%d %H:%M} UTC")
