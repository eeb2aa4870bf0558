"""Command line of the untrusted node: one module a command."""

from __future__ import annotations

from splitwire.commands import application
from splitwire.console import run

app = application(
    "ucn", "The untrusted node: runs the middle of a language model for trusted nodes.", __name__, ("serve", "info")
)


def main() -> None:
    """Runs `ucn` and exits."""
    run(app, "ucn")
