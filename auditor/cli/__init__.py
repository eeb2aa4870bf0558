"""`auditor`: taps the wire, attacks what was captured, and gives a verdict."""

from __future__ import annotations

from splitwire.commands import application
from splitwire.console import run

app = application(
    "auditor",
    "Capture what an untrusted node can see, attack it, and say whether it may be sent.",
    __name__,
    (
        "audit",
        "calibrate",
        "compare",
        "gate",
        "paf",
        "power",
        "plan",
        "report",
        "diff",
        "combine",
        "tap",
        "import_",
        "watch",
        "verify",
        "inspect",
        "keygen",
    ),
)


def main() -> None:
    """Entry point."""
    run(app, "auditor")
