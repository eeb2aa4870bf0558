"""`splitwire`: what a user needs before any node runs: keys and certificates, and the embedded model."""

from __future__ import annotations

from splitwire.commands import application
from splitwire.console import run

app = application(
    "splitwire",
    "Keys, certificates and models of a split language model.",
    __name__,
    ("pki", "fetch", "health"),
)


def main() -> None:
    """Entry point."""
    run(app, "splitwire")
