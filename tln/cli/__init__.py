"""Command line of the trusted node: one module a command."""

from __future__ import annotations

from splitwire.commands import application
from splitwire.console import run

app = application(
    "tln",
    "The trusted node: holds the text and both ends of the model, and sends what may cross.",
    __name__,
    ("prepare", "train", "generate", "serve", "replay"),
)


def main() -> None:
    """Runs `tln` and exits."""
    run(app, "tln")
