"""A headless browser for pages of ours; tests that use it are skipped where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def seen_by_a_browser(address: str, profile: Path, width: int = 800) -> str:
    """The page's document after its scripts have run for four seconds of the page's own time; `width` of the window."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", f"--user-data-dir={profile}"]
    flags.append(f"--window-size={width},600")
    command = [str(CHROMIUM), *flags, "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


def size_in_a_browser(page: Path, selector: str, profile: Path, width: int = 800) -> tuple[int, int]:
    """Width and height in CSS pixels that the browser gives the first element of that kind on a page of a file.

    The page's policy allows no script, so a copy without it is measured.
    """
    script = (
        f"<script>const r = document.querySelector('{selector}').getBoundingClientRect();"
        "document.title = `size ${Math.round(r.width)} ${Math.round(r.height)}`;</script>"
    )
    probe = page.with_name(f"measured-{page.name}")
    probe.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text()) + script)
    title = seen_by_a_browser(probe.as_uri(), profile, width).split("<title>size ")[1].split("</title>")[0]
    across, down = title.split()
    return int(across), int(down)
